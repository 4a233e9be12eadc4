# Build and install with PostgreSQL's usual commands; cargo does the work.
#   make [PG_CONFIG=.../pg_config]            build
#   make install [PG_CONFIG=...] [DESTDIR=]   install, below DESTDIR if it is given
#   make installcheck                         all regression tests, on private servers
#   make clean                                remove what was built
srcdir := $(patsubst %/,%,$(dir $(realpath $(firstword $(MAKEFILE_LIST)))))
PG_CONFIG ?= pg_config
# In the source, so that `sudo make install` finds what `make` has built.
CARGO_TARGET_DIR ?= $(srcdir)/target
export PG_CONFIG CARGO_TARGET_DIR

all:
	$(srcdir)/scripts/package build

install:
	$(srcdir)/scripts/package install "$(DESTDIR)"

installcheck:
	$(srcdir)/scripts/test build regress

clean:
	rm -rf $(srcdir)/target

.PHONY: all install installcheck clean

# Functions that all scripts share; sourced, never run. Bash, `set -euo pipefail`.
#
# Environment that users may set:
#   MIXEDCC_HOME      directory of the private cluster (default /tmp/mixedcc-USER)
#   CARGO_TARGET_DIR  where Rust builds (default ~/.cache/mixedcc/target)
#   MIXEDCC_PRELOAD   shared_preload_libraries of the private cluster (default mixedcc)
#   MIXEDCC_LOAD_WORKERS  mixedcc.load_workers of the private cluster (default: the setting's own)
#   PG_CONFIG         pg_config of another PostgreSQL than the one that pgrx.toml names and apt
#                     installs; what it names must be there, server headers included

repo_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
cache_dir=$HOME/.cache/mixedcc
MIXEDCC_HOME=${MIXEDCC_HOME:-/tmp/mixedcc-$(id -un)}

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# pgrx.toml: the value of a key, or the items of its one-line array, one a line.
setting() { # section, key
    awk -v section="[$1]" -v key="$2" '
        /^\[/ { inside = ($0 == section) }
        inside && $1 == key && $2 == "=" {
            while (match($0, /"[^"]*"/)) {
                print substr($0, RSTART + 1, RLENGTH - 2)
                $0 = substr($0, RSTART + RLENGTH)
                found = 1
            }
        }
        END { exit !found }' "$repo_dir/pgrx.toml" || die "pgrx.toml has no $2 in [$1]"
}

# Sets pg_bin, pg_config, pg_major, and cargo's options for that version (the default is 15).
find_postgresql() {
    if [ -z "${PG_CONFIG:-}" ]; then
        pg_major=$(setting toolchain postgresql)
        pg_bin=/usr/lib/postgresql/$pg_major/bin
    else
        pg_bin=$("$PG_CONFIG" --bindir) || die "PG_CONFIG is not a program of PostgreSQL: $PG_CONFIG"
        pg_major=$("$PG_CONFIG" --version | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
        [ -n "$pg_major" ] || die "$PG_CONFIG names no version"
        [ -x "$pg_bin/pg_config" ] || die "$PG_CONFIG names $pg_bin, which has no pg_config"
    fi
    pg_config=$pg_bin/pg_config
    export PGRX_PG_CONFIG_PATH=$pg_config
    pg_features=()
    [ "$pg_major" = 15 ] || pg_features=(--no-default-features --features "mixedcc/pg$pg_major")
}
find_postgresql

# --- rights ------------------------------------------------------------------

is_root() { [ "$(id -u)" = 0 ]; }

# For apt and for installing the extension's files; nothing else needs rights.
as_root() {
    if is_root; then
        "$@"
    elif [ -t 0 ] && [ -z "${CI:-}" ]; then
        sudo -- "$@"
    else
        sudo -n -- "$@"
    fi
}

# Runs a command as the user that owns our servers: PostgreSQL refuses root.
# Backtraces are switched off, for they would end up in every error's DETAIL.
as_server_user() {
    if is_root; then
        (cd / && exec runuser -u postgres -- env -u RUST_BACKTRACE HOME=/tmp "$@")
    else
        (cd / && exec env -u RUST_BACKTRACE "$@")
    fi
}

server_user() { if is_root; then echo postgres; else id -un; fi; }

# --- set-up ------------------------------------------------------------------

package_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs the named Debian packages that are missing.
install_packages() {
    local missing=() package
    for package in "$@"; do
        package_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "Installing by apt: ${missing[*]}"
    as_root apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "${missing[@]}" >/dev/null
}

# PostgreSQL without the cluster that Debian would make and start, unless its
# cluster tools are there already: then their owner's settings decide.
install_postgresql() {
    local dropin=/etc/postgresql-common/createcluster.d/mixedcc-setup.conf packages
    [ -z "${PG_CONFIG:-}" ] || return 0
    mapfile -t packages < <(setting packages postgresql)
    if package_installed postgresql-common; then
        install_packages "${packages[@]}"
        return
    fi
    as_root mkdir -p "$(dirname $dropin)"
    echo 'create_main_cluster = false' | as_root tee $dropin >/dev/null
    local status=0
    install_packages "${packages[@]}" || status=$?
    as_root rm -f $dropin
    return $status
}

find_cargo() {
    # shellcheck disable=SC1091
    if ! command -v cargo >/dev/null && [ -f "$HOME/.cargo/env" ]; then . "$HOME/.cargo/env"; fi
    command -v cargo >/dev/null || die "cargo not found: install Rust from https://rustup.rs"
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache_dir/target}
    package_dir=$CARGO_TARGET_DIR/mixedcc-package-$pg_major
    mkdir -p "$CARGO_TARGET_DIR"
}

# Everything that building and running need; quick when nothing is missing.
set_up() {
    local packages
    mapfile -t packages < <(setting packages debian)
    install_packages "${packages[@]}"
    install_postgresql
    find_cargo
}

# Sets nightly to the name of the pinned nightly toolchain, as rustup knows it: by its date,
# or "nightly" as long as that is the same compiler. Installs it if there is none.
find_nightly() {
    local pinned compiler
    pinned=$(setting toolchain nightly)
    compiler=$(setting toolchain nightly_rustc)
    for nightly in "$pinned" nightly; do
        [ "$(RUSTUP_AUTO_INSTALL=0 rustc "+$nightly" --version 2>/dev/null)" != "$compiler" ] || return 0
    done
    nightly=$pinned
    say "Installing the Rust toolchain $pinned"
    rustup toolchain install "$pinned" --profile minimal >/dev/null && return
    say "The Rust toolchain $pinned ($compiler) is missing: rustup toolchain install $pinned"
    return 1
}

# --- build and install -------------------------------------------------------

# The version that the control file gives to CREATE EXTENSION.
extension_version() { sed -nE "s/^default_version = '(.*)'$/\1/p" "$repo_dir/mixedcc.control"; }

# Builds in release mode; the files to install end up below $package_dir. Plain cargo does it: all
# SQL objects are written by hand, so nothing needs cargo-pgrx.
build_extension() { # options of cargo build...
    local library share version
    rm -rf "${package_dir:?}"
    (cd "$repo_dir" && cargo build --release --lib -p mixedcc "${pg_features[@]}" "$@") || return
    library=$package_dir$("$pg_config" --pkglibdir)
    share=$package_dir$("$pg_config" --sharedir)/extension
    version=$(extension_version)
    install -D -m 755 "$CARGO_TARGET_DIR/release/libmixedcc.so" "$library/mixedcc.so" || return
    install -D -m 644 "$repo_dir/mixedcc.control" "$share/mixedcc.control" || return
    # The scripts of earlier versions, which tests update from, and this version's objects.
    install -m 644 "$repo_dir"/sql/mixedcc--*.sql "$share/" || return
    (cd "$repo_dir/src/admin/sql" && cat bootstrap.sql objects.sql) >"$share/mixedcc--$version.sql" || return
    # The header for other extensions, where PostgreSQL's own extensions have theirs.
    install -D -m 644 "$repo_dir/src/paths/native/mixedcc.h" \
        "$package_dir$("$pg_config" --includedir-server)/extension/mixedcc/mixedcc.h"
}

# Is our Debian package installed, in this version?
package_of_this_version() {
    local package=postgresql-$pg_major-mixedcc
    package_installed "$package" && [ "$(dpkg-query -W -f '${Version}' "$package")" = "$(extension_version)" ]
}

# Copies what differs. `install` unlinks the old file first: a server that has
# the old library mapped goes on undisturbed.
install_extension() {
    local file target
    # Without it all files of the directory would be copied to /.
    : "${package_dir:?}"
    (cd "$package_dir" && find . -type f) | while read -r file; do
        target=/${file#./}
        cmp -s "$package_dir/$file" "$target" && continue
        as_root install -D -m "$([[ $file == *.so ]] && echo 755 || echo 644)" \
            "$package_dir/$file" "$target" </dev/null
    done
}

# --- private cluster ---------------------------------------------------------

# All of a cluster lies in $MIXEDCC_HOME: data, sockets (a short path), log.
use_cluster() { # home
    MIXEDCC_HOME=$1
    PGDATA=$MIXEDCC_HOME/data
    PGHOST=$MIXEDCC_HOME/sockets
    PGPORT=5432
    PGUSER=postgres
    PGBIN=$pg_bin
    export MIXEDCC_HOME PGDATA PGHOST PGPORT PGUSER PGBIN
    unset PGDATABASE PGOPTIONS PGSERVICE
    server_log=$MIXEDCC_HOME/server.log
}

# The directory is predictable and in /tmp: take it only if it is ours.
make_home() {
    local owner
    if mkdir -m 755 "$MIXEDCC_HOME" 2>/dev/null; then
        ! is_root || chown postgres: "$MIXEDCC_HOME"
    fi
    owner=$(stat -c %U "$MIXEDCC_HOME") || die "cannot use $MIXEDCC_HOME"
    [ ! -L "$MIXEDCC_HOME" ] && [ "$owner" = "$(server_user)" ] ||
        die "$MIXEDCC_HOME belongs to $owner, not to $(server_user): set MIXEDCC_HOME to another directory"
}

# Only the server's user and root can connect, so no password is asked.
write_server_config() {
    local memory max_connections preload=${MIXEDCC_PRELOAD-mixedcc}
    memory=$(setting server memory)
    max_connections=$(setting server max_connections)
    cat <<CONF
# Written by scripts/lib.sh at every start; put your own settings in postgresql.auto.conf.
listen_addresses = ''
unix_socket_directories = '$PGHOST'
unix_socket_permissions = 0700
port = $PGPORT
max_connections = $max_connections
max_prepared_transactions = 10
max_locks_per_transaction = 128
wal_keep_size = '1GB'  # standbys of tests have no slots, and may lag behind checkpoints
fsync = off
synchronous_commit = off
log_line_prefix = '%m [%p] %q%u@%d '
lc_messages = 'C'
shared_preload_libraries = '$preload'
CONF
    case $preload in
        *mixedcc*)
            echo "mixedcc.memory = '$memory'"
            [ -z "${MIXEDCC_LOAD_WORKERS:-}" ] || echo "mixedcc.load_workers = $MIXEDCC_LOAD_WORKERS"
            ;;
    esac
}

make_cluster() {
    make_home
    if [ ! -f "$PGDATA/PG_VERSION" ]; then
        as_server_user mkdir -p "$PGHOST"
        as_server_user "$pg_bin/initdb" -D "$PGDATA" -U postgres -A trust -E UTF8 --locale=C \
            --no-sync --no-instructions >/dev/null
        echo "include = '$MIXEDCC_HOME/mixedcc.conf'" | as_server_user tee -a "$PGDATA/postgresql.conf" >/dev/null
    fi
    write_server_config | as_server_user tee "$MIXEDCC_HOME/mixedcc.conf" >/dev/null
}

server_pid() { as_server_user head -n 1 "$PGDATA/postmaster.pid" 2>/dev/null; }
server_running() { as_server_user "$pg_bin/pg_ctl" -D "$PGDATA" status >/dev/null 2>&1; }

start_server() {
    server_running && return
    make_cluster
    # The server must not hold our caller's files open (3 is scripts/test's).
    as_server_user "$pg_bin/pg_ctl" -D "$PGDATA" -l "$server_log" -w -t 120 start </dev/null >/dev/null 3>&- || {
        as_server_user tail -n 20 "$server_log" >&2
        die "the server did not start; its log is $server_log"
    }
}

stop_server() { # [mode]
    server_running || return 0
    as_server_user "$pg_bin/pg_ctl" -D "$PGDATA" -m "${1:-fast}" -w -t 120 stop >/dev/null
}

# Waits until a process has ended. A zombie has: it holds nothing, and the first process of some
# containers reaps late or never.
wait_for_end() { # pid
    while grep -qs '^State:' "/proc/$1/status" && ! grep -qs '^State:.*zombie' "/proc/$1/status"; do
        sleep 0.02
    done
}

# SIGKILL to the postmaster; its children see that it is gone and end, and only
# then can a server start again on the same data.
kill_server() {
    local pid children child
    server_running || die "no server runs in $PGDATA"
    pid=$(server_pid)
    # A child that it forks after we have looked would write to the files of the next server.
    as_server_user kill -STOP "$pid"
    until [ ! -d "/proc/$pid" ] || grep -qs "^State:.*[TZ] (" "/proc/$pid/status"; do sleep 0.01; done
    children=$(grep -lsE "^PPid:\s*$pid\$" /proc/[0-9]*/status | cut -d/ -f3 || true)
    as_server_user kill -KILL "$pid"
    for child in $children $pid; do wait_for_end "$child"; done
    # A start would take the zombie's pid in these files for a live server.
    as_server_user rm -f "$PGDATA/postmaster.pid" "$PGHOST/.s.PGSQL.$PGPORT.lock"
}

psql_quiet() { as_server_user "$pg_bin/psql" -XqAt -v ON_ERROR_STOP=1 "$@"; }

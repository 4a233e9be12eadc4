# PostgreSQL's official image with mixedcc:  docker build -t mixedcc .
# Run it as that image says. Another version: --build-arg PG_MAJOR=17
ARG PG_MAJOR=15

FROM postgres:${PG_MAJOR}-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential ca-certificates clang curl \
    libclang-dev libnuma-dev "postgresql-server-dev-$PG_MAJOR"
COPY rust-toolchain.toml /src/
RUN curl --proto '=https' -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain none \
    && cd /src && /root/.cargo/bin/rustup toolchain install
ENV PATH=/root/.cargo/bin:$PATH
COPY . /src
RUN cd /src && export PG_CONFIG=/usr/lib/postgresql/$PG_MAJOR/bin/pg_config \
    && make && make install DESTDIR=/out && find /out -name '*.so' -exec strip --strip-unneeded {} +

FROM postgres:${PG_MAJOR}-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /out /
CMD ["postgres", "-c", "shared_preload_libraries=mixedcc"]

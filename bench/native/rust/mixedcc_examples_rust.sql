-- The functions of the example in Rust.
-- psql -v module=PATH: the library without its suffix (cargo build --release -p mixedcc-examples-rust).
CREATE FUNCTION rust_read20(seed bigint, row_count int) RETURNS bigint
    AS :'module', 'mixedcc_rust_read20' LANGUAGE C VOLATILE STRICT;
CREATE FUNCTION rust_read10_update10(seed bigint, row_count int) RETURNS bigint
    AS :'module', 'mixedcc_rust_read10_update10' LANGUAGE C VOLATILE STRICT;
-- As if mixedcc had this version, and a struct larger by so many bytes; major 0: as if it was not loaded.
CREATE FUNCTION rust_version(major int, minor int, size int) RETURNS boolean
    AS :'module', 'mixedcc_rust_version' LANGUAGE C VOLATILE STRICT;

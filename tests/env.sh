# Sourced by the test runners: finds PostgreSQL's tools and the server to test.
# PGHOST, PGPORT and PGUSER name the server; PGBIN its binaries.
tests_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root_dir=$(dirname "$tests_dir")
PGBIN=${PGBIN:-$(pg_config --bindir)}
pgxs_dir=$(dirname "$("$PGBIN/pg_config" --pgxs)")/..
export PGBIN PGHOST=${PGHOST:-/tmp} PGPORT=${PGPORT:-5432}
output_dir=${TESTS_OUTPUT:-$root_dir/target/tests}

# Makes an empty database; with "heap" the name mixedcc stands for heap's own
# handler, so that the same scripts run unchanged and give the reference output.
make_database() { # name, access method
    "$PGBIN/psql" -X -q -v ON_ERROR_STOP=1 -d postgres <<SQL
SET client_min_messages = warning;
DROP DATABASE IF EXISTS $1;
CREATE DATABASE $1 TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'UTF8';
ALTER DATABASE $1 SET lc_messages TO 'C';
ALTER DATABASE $1 SET timezone_abbreviations TO 'Default';
ALTER DATABASE $1 SET bytea_output TO 'hex';
SQL
    if [ "$2" = heap ]; then
        "$PGBIN/psql" -X -q -d "$1" -c \
            'CREATE ACCESS METHOD mixedcc TYPE TABLE HANDLER heap_tableam_handler'
    else
        "$PGBIN/psql" -X -q -d "$1" -c 'CREATE EXTENSION mixedcc'
    fi
}

# The tests named on the command line, or all of a schedule.
scheduled() { # schedule, names...
    local schedule=$1
    shift
    if [ $# -gt 0 ]; then printf '%s\n' "$@"; else sed -n 's/^test: *//p' "$schedule" | tr ' ' '\n'; fi
}

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
\\c $1
-- A statement is run, and its plan shown as all versions of PostgreSQL have it.
CREATE FUNCTION run_plan(statement text) RETURNS TABLE ("QUERY PLAN" text) LANGUAGE plpgsql AS \$\$ BEGIN
    FOR "QUERY PLAN" IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) ' || statement LOOP
        CONTINUE WHEN "QUERY PLAN" ~ '^ *Index Searches: ';
        "QUERY PLAN" := regexp_replace("QUERY PLAN", '(rows=\d+)\.00', '\1');
        RETURN NEXT;
    END LOOP;
END \$\$;
SQL
    if [ "$2" = heap ]; then
        "$PGBIN/psql" -X -q -d "$1" -c \
            'CREATE ACCESS METHOD mixedcc TYPE TABLE HANDLER heap_tableam_handler'
    else
        "$PGBIN/psql" -X -q -d "$1" -c 'CREATE EXTENSION mixedcc'
    fi
}

# How all sessions run what the bypass can run, by their settings: by the bypass, by our scans under
# the executor's nodes, or by its own nodes alone.
set_way() { # bypass, scan or executor
    case $1 in
        bypass) ;;
        scan) PGOPTIONS="${PGOPTIONS:-} -c mixedcc.enable_bypass=off" ;;
        executor) PGOPTIONS="${PGOPTIONS:-} -c mixedcc.enable_bypass=off -c mixedcc.enable_primary_scan=off" ;;
        *) echo "no way $1: bypass, scan, executor" >&2; exit 2 ;;
    esac
    export PGOPTIONS
}

# Did they? Fails if the counts since `mixedcc.reset_bypass()` say something else. Tests may switch
# the bypass off themselves.
check_way() { # way, database
    local counts
    counts=$("$PGBIN/psql" -X -A -t -d "$2" -c "SELECT sum(statements) FILTER (WHERE statement IS NOT NULL) > 0,
        sum(statements) FILTER (WHERE reason = 'setting') > 0 FROM mixedcc.bypass")
    case $1:$counts in
        bypass:t* | 'scan:f|t' | 'executor:f|t') ;;
        *) echo "statements did not run the way \"$1\" (by the bypass, and not for its setting: $counts)"; return 1 ;;
    esac
}

# The tests named on the command line, or all of a schedule.
scheduled() { # schedule, names...
    local schedule=$1
    shift
    if [ $# -gt 0 ]; then printf '%s\n' "$@"; else sed -n 's/^test: *//p' "$schedule" | tr ' ' '\n'; fi
}

# Runs the jobs of scripts/test and counts their tests; sourced by it.
# A stage that ran no test, or a runner that failed without naming a test, counts
# as one failure: silence is never success.

passed=0
failed=0
stage_passed=0
stage_failed=0

add() { # passed, failed
    passed=$((passed + $1)) failed=$((failed + $2))
    stage_passed=$((stage_passed + $1)) stage_failed=$((stage_failed + $2))
}

fail() { # message
    say "FAIL $1"
    add 0 1
}

# Runs a command or function in the background, so that a signal ends us at once,
# with a time limit and no input; its output goes to the terminal and to $job_log.
job() { # seconds, command...
    local limit=$1 status
    shift
    job_log=$work_dir/log/job
    set -m # each has a process group of its own, to be ended as one
    {
        "$@" 2>&1 | tee "$job_log"
        exit "${PIPESTATUS[0]}"
    } </dev/null 3>&- &
    job_pid=$!
    { sleep "$limit" && say "no end in $limit s: killed" && kill -KILL -$job_pid; } 3>&- &
    job_watcher_pid=$!
    set +m
    wait $job_pid
    status=$?
    job_pid=
    end_job
    return $status
}

# Ends the watcher, and a job that is still running.
end_job() {
    local group
    for group in ${job_watcher_pid:-} ${job_pid:-}; do
        kill -TERM -- "-$group" 2>/dev/null
        wait "$group" 2>/dev/null
    done
    job_watcher_pid=
}

check_status() { # name, exit status
    if [ "$2" = 0 ]; then add 1 0; else fail "$1"; fi
}

# Sums up cargo's "test result: ok. 12 passed; 0 failed; ..." lines.
count_cargo_tests() { # exit status
    local counts
    counts=$(awk '/^test result:/ { for (i = 2; i <= NF; i++) {
                      if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1) } }
                  END { print p + 0, f + 0 }' "$job_log")
    # shellcheck disable=SC2086
    add $counts
    if [ "$1" != 0 ] && [ "${counts#* }" = 0 ]; then fail "cargo test ended with status $1"; fi
    [ "$counts" != "0 0" ] || fail "no tests found"
}

# unittest ends with "Ran N tests in ..." and "OK" or "FAILED (failures=1, errors=2)".
count_unittest() { # exit status
    local ran bad
    ran=$(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$job_log")
    bad=$(awk -F '[^a-z0-9]+' '/^FAILED \(/ { for (i = 2; i < NF; i++)
              if ($i ~ /^(failures|errors)$/) n += $(i + 1) } END { print n + 0 }' "$job_log")
    add $((${ran:-0} - $bad)) "$bad"
    if [ "$1" != 0 ] && [ "$bad" = 0 ]; then fail "unittest ended with status $1"; fi
    [ "${ran:-0}" != 0 ] || fail "no tests found"
}

# pg_regress prints a line for each test, with "ok", "FAILED" or "failed (ignored)".
count_pg_regress() { # exit status, output directory
    local ok bad
    ok=$(grep -cE '\.\.\. ok +[0-9]+ ms' "$job_log")
    bad=$(grep -cE '\.\.\. (FAILED|failed)' "$job_log")
    add "$ok" "$bad"
    if [ "$1" != 0 ]; then
        [ "$bad" != 0 ] || fail "the runner ended with status $1"
        if [ -s "$2/regression.diffs" ]; then head -n 200 "$2/regression.diffs"; fi
    fi
    [ $((ok + bad)) -gt 0 ] || fail "no tests found"
}

# A process test prints "ok NAME" and "FAIL NAME" lines and exits 0 or 1.
count_process_test() { # exit status, name
    local ok bad
    ok=$(grep -c '^ok ' "$job_log")
    bad=$(grep -c '^FAIL ' "$job_log")
    add "$ok" "$bad"
    if [ "$1" != 0 ] && [ "$bad" = 0 ]; then fail "$2 ended with status $1"; fi
    if [ "$1" = 0 ] && [ "$ok" = 0 ]; then fail "$2 reported no test"; fi
}

# A test that no schedule names would never run: that is a failure too.
check_schedule() { # schedule, directory, extension of the test files
    local file name
    for file in "$repo_dir/$2"/*."$3"; do
        name=$(basename "$file" ".$3")
        [[ $name != mixedcc--* ]] || continue # a script of the extension
        sed -n 's/^test: *//p' "$repo_dir/$1" | tr ' ' '\n' | grep -qxF "$name" || fail "$2/$name.$3 is not in $1"
    done
}

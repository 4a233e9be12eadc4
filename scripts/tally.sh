# Runs the jobs of scripts/test and counts their checks; sourced by it.
#
# A check is counted once, whatever runs it again: each has a name, and checks of the
# same name are one, which failed if it failed anywhere. So a regression test that runs
# in three ways is one check. So is a process test that is repeated with other seeds, and
# a test of the engine that AddressSanitizer runs again.
# A stage that ran no test, or a runner that failed without naming a test, counts
# as one failure: silence is never success.

# Lines "stage TAB ok or FAIL TAB name".
tally_file() { printf '%s' "${work_dir:-/nonexistent}/log/checks"; }

# One process at a time: the lanes of a stage share files and the terminal.
locked() { flock "$work_dir/log" "$@"; }

# Takes lines "ok NAME" and "FAIL NAME"; adds them to the stage that runs.
record() {
    locked awk -v stage="${stage_name:-}" '{ status = $1; sub(/^[^ ]+ /, ""); print stage "\t" status "\t" $0 }' >>"$(tally_file)"
}

# Prints "PASSED FAILED" of one stage, or of all.
tally() { # [stage]
    [ -f "$(tally_file)" ] || { echo "0 0"; return; }
    awk -F '\t' -v stage="${1:-}" '
        stage == "" || $1 == stage { if ($2 != "ok") bad[$3] = 1; seen[$3] = 1 }
        END { for (name in seen) if (name in bad) f++; else p++; print p + 0, f + 0 }' "$(tally_file)"
}

fail() { # message
    say "FAIL $1"
    echo "FAIL $1" | record
    keep_excerpt
}

# What the job that just ran printed around its failures, or at its end, for show_failures.
keep_excerpt() {
    [ -s "${job_log:-}" ] || return 0
    {
        printf '\n-- %s\n' "${job_name:-${stage_name:-}}"
        if grep -q '^FAIL ' "$job_log"; then grep -h -B 25 -A 25 '^FAIL ' "$job_log"; else tail -n 40 "$job_log"; fi |
            tail -n 120
    } | locked tee -a "$work_dir/log/excerpts" >/dev/null
}

# Logs are cut off where they are shown, so the last lines say again what failed.
show_failures() {
    [ -s "$work_dir/log/checks" ] && grep -q -v "$(printf '\tok\t')" "$work_dir/log/checks" || return 0
    say "== failures"
    [ ! -s "$work_dir/log/excerpts" ] || tail -n 400 "$work_dir/log/excerpts"
    printf '\n'
    awk -F '\t' '$2 != "ok" && !seen[$0]++ { print "FAILED: " $1 ": " $3 }' "$work_dir/log/checks"
}

# Runs a command or function in the background, so that a signal ends us at once,
# with a time limit and no input; its output goes to the terminal and to $job_log. In a lane it goes
# to the terminal at the end.
job() { # seconds, command...
    local limit=$1 status
    shift
    job_log=$work_dir/log/job${lane:-}
    set -m # each has a process group of its own, to be ended as one
    if [ -n "${lane:-}" ]; then
        "$@" >"$job_log" 2>&1 </dev/null 3>&- &
    else
        {
            "$@" 2>&1 | tee "$job_log"
            exit "${PIPESTATUS[0]}"
        } </dev/null 3>&- &
    fi
    job_pid=$!
    { sleep "$limit" && say "no end in $limit s: killed" && kill -KILL -$job_pid; } 3>&- &
    job_watcher_pid=$!
    set +m
    wait $job_pid
    status=$?
    job_pid=
    end_job
    [ -z "${lane:-}" ] || locked cat "$job_log"
    return $status
}

# Runs a command with each item, two at a time if the machine has two processors. Each of these
# lanes takes the next item when it has done one.
in_lanes() { # command, item...
    local command=$1 number
    shift
    printf '%s\n' "$@" >"$work_dir/log/queue"
    lane_pids=()
    for number in $(seq $(($(nproc) > 1 ? 2 : 1))); do
        run_lane "$number" "$command" &
        lane_pids+=($!)
    done
    wait "${lane_pids[@]}"
    lane_pids=()
}

run_lane() { # number, command
    local item
    lane=-$1
    trap 'end_job; exit 143' TERM
    # shellcheck disable=SC2016
    while item=$(locked sh -c 'head -n 1 "$1"; sed -i 1d "$1"' - "$work_dir/log/queue") && [ -n "$item" ]; do
        "$2" "$item"
    done
}

# Ends the lanes and their jobs.
end_lanes() {
    [ -n "${lane_pids[*]:-}" ] || return 0
    kill -TERM "${lane_pids[@]}" 2>/dev/null
    wait "${lane_pids[@]}" 2>/dev/null
    lane_pids=()
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
    if [ "$2" = 0 ]; then echo "ok $1" | record; else fail "$1"; fi
}

# Records the "ok" and "FAIL" lines of a file, and complains of a runner that ended
# badly, or well without a test.
record_lines() { # exit status, runner, file
    record <"$3"
    if grep -q '^FAIL ' "$3"; then keep_excerpt; return; fi
    if [ "$1" != 0 ]; then
        fail "$2 ended with status $1"
    elif [ ! -s "$3" ]; then
        fail "$2 ran no test"
    fi
}

# Names cargo's lines "test NAME ... ok" by the package and the program that they come from.
# The sums of its "test result:" lines must be the same.
count_cargo_tests() { # exit status, package
    awk -v package="$2" '
        /^ +Running / { program = $2 == "unittests" ? $3 : $2 }
        /^ +Doc-tests / { program = "documents" }
        /^test .* \.\.\. (ok|FAILED)$/ {
            name = $0
            sub(/^test /, "", name); sub(/ \.\.\. (ok|FAILED)$/, "", name)
            print ($NF == "ok" ? "ok " : "FAIL ") package " " program " " name
            lines++
        }
        /^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ /^(passed|failed);$/) sum += $(i - 1) }
        END { if (lines + 0 != sum + 0) print "FAIL " package ": " sum " results of cargo, " lines + 0 " tests named" }
    ' "$job_log" >"$work_dir/log/tests"
    record_lines "$1" "cargo test of $2" "$work_dir/log/tests"
}

# unittest -v: "test_of (file.Class) ... ok"; the test's output and its docstring come in between.
# A test that is skipped is one that did not run.
count_unittest() { # exit status, name
    awk -v kind="$2" '
        /^test[A-Za-z0-9_]* \(/ { name = $1 " " $2 }
        name != "" && /(^| \.\.\. )(ok|FAIL|ERROR|unexpected success|expected failure|skipped .*)$/ {
            print ($NF == "ok" ? "ok " : "FAIL ") kind " " name
            lines++
            name = ""
        }
        /^Ran [0-9]+ tests? in / { ran = $2 }
        END { if (lines + 0 != ran + 0) print "FAIL " kind ": " ran + 0 " tests run, " lines + 0 " named" }
    ' "$job_log" >"$work_dir/log/tests"
    record_lines "$1" "unittest of $2" "$work_dir/log/tests"
}

# What pg_regress prints for each test. Up to PostgreSQL 15: "[test] NAME ... ok 12 ms" (or FAILED,
# or "failed (ignored)"). From 16 on: "ok 1 - NAME 12 ms" or "not ok 1 - NAME 12 ms".
count_pg_regress() { # exit status, output directory, kind
    awk -v kind="$3" '
        /\.\.\. (ok|FAILED|failed)( |$)/ {
            print (/\.\.\. ok/ ? "ok " : "FAIL ") kind " " ($1 == "test" ? $2 : $1)
        }
        /^(not )?ok +[0-9]+ +[-+] / {
            print ($1 == "ok" ? "ok " : "FAIL ") kind " " ($1 == "ok" ? $4 : $5)
        }' "$job_log" >"$work_dir/log/tests"
    if [ "$1" != 0 ] && [ -s "$2/regression.diffs" ]; then head -n 200 "$2/regression.diffs"; fi
    record_lines "$1" "the runner of $3" "$work_dir/log/tests"
}

# A process test prints "ok NAME" and "FAIL NAME" lines and exits 0 or 1.
# A test that cannot run here says why, and has no check.
count_process_test() { # exit status, name
    if [ "$1" = 0 ] && grep -q '^skipped: ' "$job_log"; then
        say "-- $2 was left out: $(sed -n 's/^skipped: //p' "$job_log")"
        return
    fi
    awk -v script="$2" '/^(ok|FAIL) / { status = $1; sub(/^[^ ]+ /, ""); print status " process " script " " $0 }' \
        "$job_log" >"$job_log.tests"
    record_lines "$1" "process $2" "$job_log.tests"
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

#!/usr/bin/env bash
# Did a change slow training down? Measures the base and the head in turns on this machine, so that
# what else happens to the machine meets both alike, and compares them.
#
#   BASE_PYTHON  python of the environment with the base installed; left out: only the head is
#                measured, and BASE_STORE must hold what to compare with
#   HEAD_PYTHON  python of the environment with the head installed (default: python)
#   BASE_STORE   database of the base (default: base.db)
#   HEAD_STORE   database of the head (default: head.db)
#   STUDY        a study file to run; left out: the smoke search, a tiny model on two ranks
#   ROUNDS       measurements of each side (default: 3)
#   THRESHOLD    a fall below this share does not count (default: 0.05)
#   LAUNCHER     what runs the trials (default: ray)
#   SUMMARY      file that gets the Markdown summary (default: GITHUB_STEP_SUMMARY, else none)
#
# Exit codes: 0 no regression, 7 regression, others as `tuner --help` lists them.
set -euo pipefail

head_python=${HEAD_PYTHON:-python}
base_store=${BASE_STORE:-base.db}
head_store=${HEAD_STORE:-head.db}
launcher=${LAUNCHER:-ray}
summary=${SUMMARY:-${GITHUB_STEP_SUMMARY:-}}
# one name a round, so that a second job in the same database does not collide with the first
run_id=${RUN_ID:-$(date -u +%Y%m%d%H%M%S)}

measure() { # python, database, round
  if [ -n "${STUDY:-}" ]; then
    "$1" -P -m tuner.cli run "$STUDY" --plain --store "$2" --name "ci-$run_id-$3" --launcher "$launcher"
  else
    # the prior's order does not depend on results, so that every round measures the same points
    "$1" -P -m tuner.cli smoke --store "$2" --name "ci-$run_id-$3" --launcher "$launcher" \
      --searcher prior --repeats 2
  fi
}

for round in $(seq 1 "${ROUNDS:-3}"); do
  [ -z "${BASE_PYTHON:-}" ] || measure "$BASE_PYTHON" "$base_store" "$round"
  measure "$head_python" "$head_store" "$round"
done

base="$base_store:ci-*"
[ -z "${BASE_PYTHON:-}" ] || base="$base_store:ci-$run_id-*"
code=0
report=$("$head_python" -P -m tuner.cli compare "$base" "$head_store:ci-$run_id-*" \
  --threshold "${THRESHOLD:-0.05}" --markdown) || code=$?
printf '%s\n' "$report"
[ -z "$summary" ] || printf '%s\n' "$report" >>"$summary"
exit "$code"

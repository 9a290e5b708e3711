#!/usr/bin/env bash
# Runs pytest under every combination of torch's CPU instructions and threads; the arguments are pytest's.
# Prints the failures of each combination and exits with 1 if there were any.
set -u
python=${PYTHON:-python}
failed=0
for capability in default avx2 ""; do
    for onednn in AVX2 ""; do
        for threads in 1 2; do
            echo "== ATEN_CPU_CAPABILITY=${capability:-unset} ONEDNN_MAX_CPU_ISA=${onednn:-unset} OMP_NUM_THREADS=$threads"
            env ${capability:+ATEN_CPU_CAPABILITY=$capability} ${onednn:+ONEDNN_MAX_CPU_ISA=$onednn} \
                OMP_NUM_THREADS=$threads "$python" -m pytest -q --no-header --tb=no -p no:cacheprovider "$@" \
                | grep -E "^(FAILED|ERROR)|passed|failed|error"
            [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
        done
    done
done
exit $failed

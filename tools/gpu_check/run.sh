#!/bin/sh
# sh tools/gpu_check/run.sh [--out FOLDER] [--seconds N] [--parts A,B] [--cpu]
# On a bare machine with torch and transformers: wheels in .whl (wheels.sh) are installed beside them.
root=$(cd "$(dirname "$0")/../.." && pwd)
site=${TMPDIR:-/tmp}/gpu-check-site
if ls "$root"/.whl/*.whl >/dev/null 2>&1; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$site" "$root"/.whl/*.whl || exit 1
  export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
cd "$root" && exec python3 -m tools.gpu_check "$@"

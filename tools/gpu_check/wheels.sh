#!/bin/sh
# sh tools/gpu_check/wheels.sh [PYTHON]: what run.sh needs beside torch, transformers, uvloop, rich and
# pytest, for that Python [3.12], into .whl: 4 MB
set -e
cd "$(dirname "$0")/../.."
for name in msgspec==0.22.0 httptools==0.9.0 python-multipart==0.0.34 llguidance==1.6.1 blockbuster==1.5.29; do
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version "${1:-3.12}" \
    --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d .whl "$name"
done
# Python without binaries: blockbuster needs it.
python3 -m pip wheel -q --no-deps -w .whl forbiddenfruit==0.1.4
ls -l .whl

#!/bin/bash
# Run suites of NVIDIA's QA of the Triton server (its folder qa/) against wherry:
#   tests/foreign/triton_qa.sh SERVER CLIENT WORK SUITE...
# SERVER, CLIENT: checkouts of triton-inference-server/server and /client. WORK: a folder for models, copies and
# outputs; WORK/venv must have tritonclient[all], onnx, ml_dtypes, pytest, requests, prettytable and sseclient-py, and
# torch for models of libtorch (else they are ONNX). Copy this folder if you change it meanwhile. The suites' own
# test.sh runs, with `tritonserver` a script that calls `wherry serve` (of PATH; --triton-errors unless OWN_ERRORS=1),
# as root, for each has its own network and /dev/shm. What fails is compared by hand: docs/reference/triton-clients.md.
# A suite of the Python backend is L0_backend_python/NAME (bls, env, ...). PYTHON_BACKEND: a checkout of
# triton-inference-server/python_backend, for those that clone it. PACKED: a .tar.gz of a Python 3.12 with what env
# asks for, in conda-pack's place. What they install must be in WORK/venv (torch).
set -eu
server=$(realpath "$1") client=$(realpath "$2") work=$(realpath "$3"); shift 3
here=$(dirname "$(realpath "$0")") data=$work/data qa=$work/qa python=$work/venv/bin/python interpreter=$(dirname "$(realpath "$(command -v wherry)")")/python

generate() {  # SCRIPT FOLDER OPTION...: models of qa/common/gen_*.py
    mkdir -p "$data/$2"
    (cd "$server/qa/common" && "$python" "$1" --models_dir="$data/$2" "${@:3}" >/dev/null) || echo "without: $*" >&2
}

models() {
    local onnx=(--onnx --onnx_opset=17) both=(--onnx --onnx_opset=17) kind
    if "$python" -c 'import torch' 2>/dev/null; then both+=(--libtorch); fi
    generate gen_qa_models.py qa_model_repository "${both[@]}"
    generate gen_qa_models.py qa_variable_model_repository "${both[@]}" --variable
    generate gen_qa_identity_models.py qa_identity_model_repository "${both[@]}"
    generate gen_qa_reshape_models.py qa_reshape_model_repository "${both[@]}" --variable
    generate gen_qa_sequence_models.py qa_sequence_model_repository "${both[@]}"
    generate gen_qa_sequence_models.py qa_variable_sequence_model_repository "${both[@]}" --variable
    generate gen_qa_implicit_models.py qa_sequence_implicit_model_repository "${both[@]}"
    generate gen_qa_implicit_models.py qa_sequence_initial_state_implicit_model_repository "${both[@]}" --initial-state zero
    generate gen_qa_dyna_sequence_models.py qa_dyna_sequence_model_repository "${onnx[@]}"
    generate gen_qa_dyna_sequence_implicit_models.py qa_dyna_sequence_implicit_model_repository "${onnx[@]}"
    generate gen_qa_models.py qa_ensemble_model_repository/qa_model_repository --ensemble
    generate gen_qa_sequence_models.py qa_ensemble_model_repository/qa_sequence_model_repository --ensemble
    generate gen_qa_reshape_models.py qa_ensemble_model_repository/qa_reshape_model_repository --ensemble
    for model in "$data"/qa_*_repository/onnx_*; do  # compiled backends: ONNX models of these names
        for kind in plan openvino libtorch; do
            copy=$(dirname "$model")/$kind${model##*/onnx}
            [ -e "$copy" ] || { cp -r "$model" "$copy" && sed -i "s/${model##*/}/${copy##*/}/" "$copy/config.pbtxt"; }
        done
    done
    find "$data" -name config.pbtxt -exec sed -i 's/KIND_GPU/KIND_CPU/' {} +
}

suites() {  # as Dockerfile.QA lays them out
    cp -r "$server/qa" "$work" && mkdir -p "$qa/clients"
    cp "$client"/src/python/examples/*.py "$qa/clients" && chmod +x "$qa"/clients/*.py
    for one in "$qa"/clients/*.py; do ln -s "$(basename "$one")" "${one%.py}"; done  # in place of the C++ ones
    for suite in L0_http L0_grpc L0_shared_memory L0_https L0_secure_grpc L0_data_compression; do
        mkdir -p "$qa/$suite/models" && cp -r "$server"/docs/examples/model_repository/simple* "$qa/$suite/models"
    done
    cp -r "$server"/src/test/models/{repeat_int32,square_int32} "$qa/L0_decoupled/models"
    for model in "$qa"/L0_decoupled/models/* "$qa"/custom_models/*; do mkdir -p "$model/1"; touch "$model/1/x"; done
    sed -i "s/ mkdir 1 / mkdir -p 1 /" "$qa/L0_batcher/test.sh"
    sed -i '/default_model_filename/d' "$qa"/custom_models/*/config.pbtxt
    printf 'class SharedMemoryManager: "Nothing of ours lies in /dev/shm."\n' >"$qa/common/triton_shm_monitor.py"
    find "$qa" -name '*.py' -exec sed -i '1s|^#!/usr/bin/python.*|#!/usr/bin/env python3|' {} +
    # Ready with a body is ready; and a step that fails does not end the script.
    sed -i 's/curl -s -w %{http_code} /curl -s -o \/dev\/null -w %{http_code} /; s/^\( *\)set -e$/\1set +e/' "$qa/common/util.sh"
}

programs() {
    local bin=$work/tritonserver/bin name
    mkdir -p "$bin" "$work/stubs"
    ln -sfn "$qa" "$work/tritonserver/qa"
    for name in nginx service pip pip3 gdb nvidia-smi ldconfig apt apt-get wget; do printf '#!/bin/sh\n' >"$work/stubs/$name"; done
    cat >"$bin/tritonserver" <<SERVER
#!/bin/bash
more=() all=" \$* "
[[ \$all == *--grpc-port* || \$all == *--allow-grpc=* ]] || more+=(--grpc-port=8001)
[[ \$all == *--metrics-port* || \$all == *--allow-metrics=* ]] || more+=(--metrics-port=8002)
[[ \$all == *--backend-directory* ]] || more+=(--backend-directory=$work/tritonserver/backends)
[ "\${OWN_ERRORS:-0}" = 1 ] || more+=(--triton-errors)
exec $interpreter $here/delayed.py serve "\${more[@]}" "\$@"
SERVER
    printf '#!/bin/sh\n[ "$1" != clone ] || cp -r "%s" ./python_backend\n' "${PYTHON_BACKEND:-none}" >"$work/stubs/git"
    printf '#!/bin/sh\n[ "$1" != pack ] || cp "%s" "$3"\n' "${PACKED:-none}" >"$work/stubs/conda"
    chmod +x "$bin/tritonserver" "$work"/stubs/*
    for name in sequence dyna_sequence; do  # compiled backends of the suites that wherry does not have
        mkdir -p "$work/tritonserver/backends/$name"
        cp "$here/backends/sequence/1/model.py" "$work/tritonserver/backends/$name/model.py"
    done
}

run() {  # SUITE
    cd "$work/tritonserver/qa/$1"  # a model of L0_backend_python looks for itself there
    local of_part=()
    [[ $1 != */* ]] || of_part=(MODELDIR="$(dirname "$PWD")")
    mkdir -p "$work/out/${1%/*}"
    sed -i -E "s#/opt/tritonserver/qa#$qa#; s#/opt/tritonserver#$work/tritonserver#g; s/^( *)set -e\$/\1set +e/
        s#/data/inferenceserver/\\$\{REPO_VERSION\}#$data#g; s/^( *)exit 1\$/\1RET=1/" test.sh
    sed -i '1a kill() { [ "$1" = 0 ] || command kill "$@"; }' test.sh  # 0: a server that did not start
    env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY NO_PROXY='*' SERVER_TIMEOUT="${SERVER_TIMEOUT:-40}" \
        PATH="$work/stubs:$work/venv/bin:$work/tritonserver/bin:$PATH" TRITON_DIR="$work/tritonserver" \
        DATADIR="$data" "${of_part[@]}" BACKEND_DIR="$work/tritonserver/backends" \
        SERVER="$work/tritonserver/bin/tritonserver" TEST_WINDOWS=0 TEST_JETSON=0 PYTHON_ENV_VERSION=12 \
        NVIDIA_TRITON_SERVER_VERSION=0 timeout -k 5 1800 unshare -n -m -p -f --kill-child bash -c \
        'mount -t proc proc /proc; mount -t tmpfs tmpfs /dev/shm; ip link set lo up; exec bash test.sh' \
        >"$work/out/$1.out" 2>&1 || true
    echo "$1: $(grep -acE '^(FAIL|ERROR): |^FAILED .*::' "$work/out/$1.out") tests failed," \
        "$(grep -acE '^\*\*\* .*fail' -i "$work/out/$1.out") complaints of test.sh ($work/out/$1.out)"
}

[ -e "$data" ] || models
[ -e "$qa" ] || suites
programs
for suite in "$@"; do (run "$suite"); done

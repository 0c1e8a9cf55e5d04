#!/bin/bash
# Run suites of NVIDIA's QA of the Triton server (its folder qa/) against wherry:
#   tests/foreign/triton_qa.sh SERVER CLIENT WORK SUITE...
# SERVER, CLIENT: checkouts of triton-inference-server/server and /client. WORK: a folder for models, copies and
# outputs; WORK/venv must have tritonclient[all], onnx, ml_dtypes, pytest, requests and sseclient-py. The suites' own
# test.sh runs, with `tritonserver` a script that calls `wherry serve` (of PATH; --triton-strict unless STRICT=0),
# as root, for each has its own network and /dev/shm. What fails is compared by hand: docs/reference/triton-clients.md.
# A suite of the Python backend is L0_backend_python/NAME (bls, env, ...). PYTHON_BACKEND: a checkout of
# triton-inference-server/python_backend, for those that clone it. What they install must be in WORK/venv (torch).
set -eu
server=$(realpath "$1") client=$(realpath "$2") work=$(realpath "$3"); shift 3
data=$work/data qa=$work/qa python=$work/venv/bin/python wherry=$(realpath "$(command -v wherry)")

generate() {  # SCRIPT FOLDER OPTION...: models of qa/common/gen_*.py
    mkdir -p "$data/$2"
    (cd "$server/qa/common" && "$python" "$1" --models_dir="$data/$2" "${@:3}" >/dev/null)
}

models() {
    local onnx=(--onnx --onnx_opset=17) kind
    generate gen_qa_models.py qa_model_repository "${onnx[@]}"
    generate gen_qa_identity_models.py qa_identity_model_repository "${onnx[@]}"
    generate gen_qa_sequence_models.py qa_sequence_model_repository "${onnx[@]}"
    generate gen_qa_models.py qa_ensemble_model_repository/qa_model_repository --ensemble
    for model in "$data"/qa_*_repository/onnx_*; do  # compiled backends: ONNX models of these names
        for kind in plan openvino libtorch; do
            copy=$(dirname "$model")/$kind${model##*/onnx}
            cp -r "$model" "$copy" && sed -i "s/${model##*/}/${copy##*/}/" "$copy/config.pbtxt"
        done
    done
}

suites() {  # as Dockerfile.QA lays them out
    cp -r "$server/qa" "$work" && mkdir -p "$qa/clients"
    cp "$client"/src/python/examples/*.py "$qa/clients" && chmod +x "$qa"/clients/*.py
    for suite in L0_http L0_grpc L0_shared_memory L0_https L0_secure_grpc L0_data_compression; do
        mkdir -p "$qa/$suite/models" && cp -r "$server"/docs/examples/model_repository/simple* "$qa/$suite/models"
    done
    cp -r "$server"/src/test/models/{repeat_int32,square_int32} "$qa/L0_decoupled/models"
    for model in "$qa"/L0_decoupled/models/* "$qa"/custom_models/*; do mkdir -p "$model/1"; touch "$model/1/x"; done
    sed -i '/default_model_filename/d' "$qa"/custom_models/*/config.pbtxt
    printf 'class SharedMemoryManager: "Nothing of ours lies in /dev/shm."\n' >"$qa/common/triton_shm_monitor.py"
    # Ready with a body is ready; and a step that fails does not end the script.
    sed -i 's/curl -s -w %{http_code} /curl -s -o \/dev\/null -w %{http_code} /; s/^\( *\)set -e$/\1set +e/' "$qa/common/util.sh"
}

programs() {
    local bin=$work/tritonserver/bin name
    mkdir -p "$bin" "$work/stubs" "$work/tritonserver/backends/"{sequence,dyna_sequence}
    for name in nginx service pip pip3 gdb nvidia-smi ldconfig; do printf '#!/bin/sh\n' >"$work/stubs/$name"; done
    cat >"$bin/tritonserver" <<SERVER
#!/bin/bash
more=() all=" \$* "
[[ \$all == *--grpc-port* || \$all == *--allow-grpc=* ]] || more+=(--grpc-port=8001)
[[ \$all == *--metrics-port* || \$all == *--allow-metrics=* ]] || more+=(--metrics-port=8002)
[[ \$all == *--backend-directory* ]] || more+=(--backend-directory=$work/tritonserver/backends)
[ "\${STRICT:-1}" = 0 ] || more+=(--triton-strict)
exec $wherry serve "\${more[@]}" "\$@"
SERVER
    printf '#!/bin/sh\n[ "$1" != clone ] || cp -r "%s" ./python_backend\n' "${PYTHON_BACKEND:-none}" >"$work/stubs/git"
    chmod +x "$bin/tritonserver" "$work"/stubs/*
    cat >"$work/tritonserver/backends/dyna_sequence/model.py" <<'MODEL'
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum of a sequence; the last step of one that has CORRID adds its id."""

    sums = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        key, total = request.correlation_id(), given["INPUT"]
        if not given["START"].any():
            total = total + self.sums.get(key, 0)
        self.sums[key] = total
        if "END" in given and given["END"].any():
            total = total + int(key)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", total.astype("int32"))])
MODEL
    cp "$work"/tritonserver/backends/{dyna_sequence,sequence}/model.py
}

run() {  # SUITE
    cd "$qa/$1"
    mkdir -p "$work/out/${1%/*}"
    sed -i -E "s#/opt/tritonserver/qa#$qa#; s#/opt/tritonserver#$work/tritonserver#g; s/^( *)set -e\$/\1set +e/
        s#/data/inferenceserver/\\$\{REPO_VERSION\}#$data#g; s/^( *)exit 1\$/\1RET=1/" test.sh
    sed -i '1a kill() { [ "$1" = 0 ] || command kill "$@"; }' test.sh  # 0: a server that did not start
    env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY NO_PROXY='*' SERVER_TIMEOUT=40 \
        PATH="$work/stubs:$work/venv/bin:$work/tritonserver/bin:$PATH" TRITON_DIR="$work/tritonserver" \
        DATADIR="$data" MODELDIR="$(dirname "$PWD")" BACKEND_DIR="$work/tritonserver/backends" \
        SERVER="$work/tritonserver/bin/tritonserver" TEST_WINDOWS=0 TEST_JETSON=0 PYTHON_ENV_VERSION=12 \
        NVIDIA_TRITON_SERVER_VERSION=0 timeout -k 5 1800 unshare -n -m -p -f --kill-child bash -c \
        'mount -t proc proc /proc; mount -t tmpfs tmpfs /dev/shm; ip link set lo up; exec bash test.sh' \
        >"$work/out/$1.out" 2>&1 || true
    echo "$1: $(grep -cE '^(FAIL|ERROR): |^FAILED .*::' "$work/out/$1.out") tests failed ($work/out/$1.out)"
}

[ -e "$data" ] || models
[ -e "$qa" ] || suites
programs
for suite in "$@"; do (run "$suite"); done

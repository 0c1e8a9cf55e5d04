"""KServe finds a runtime for each format, and files and ports where it expects them."""

from tests.deploy.manifests import named, of_kind, rendered, server_of, settings_of


def test_kserve_finds_the_models_files_and_ports_where_it_expects_them() -> None:
    for one in of_kind(rendered("kserve"), "ServingRuntime"):
        container = server_of(one)
        settings = settings_of(container)
        assert container["name"] == "kserve-container"
        assert settings.options.listen.port == 8080
        assert "ports" not in container  # an InferenceService may name one: Knative allows one only
        assert one["spec"]["annotations"]["prometheus.kserve.io/port"] == "8080"
        assert set(one["spec"]["protocolVersions"]) == {"v2", "grpc-v2"}
        assert container["args"][1].startswith("/mnt/models")


def test_every_inference_service_has_a_runtime_of_its_format_and_protocol() -> None:
    objects = rendered("kserve")
    for one in of_kind(objects, "InferenceService"):
        wanted = one["spec"]["predictor"]["model"]
        runtime = named(objects, "ServingRuntime", wanted["runtime"])
        formats = [(f["name"], f["version"]) for f in runtime["spec"]["supportedModelFormats"]]
        assert (wanted["modelFormat"]["name"], wanted["modelFormat"]["version"]) in formats
        assert wanted["protocolVersion"] in runtime["spec"]["protocolVersions"]
        listen = settings_of(server_of(runtime)).options.listen
        ports = {port["name"]: port["containerPort"] for port in wanted.get("ports", ())}
        assert ports == ({"h2c": listen.grpc_port} if "grpc" in wanted["protocolVersion"] else {})

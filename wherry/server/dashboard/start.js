// -- Begin

byId("to-metrics").href = base + "metrics";
byId("to-stats").href = base + "v2/models/stats";
byId("api-key").value = access.key;
byId("extra").value = access.extra;
watch();

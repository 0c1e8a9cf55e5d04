// -- Begin

for (const path of ["docs", "chat", "metrics"]) byId("to-" + path).href = base + path;
byId("to-stats").href = base + "v2/models/stats";
byId("api-key").value = access.key;
byId("extra").value = access.extra;
watch();

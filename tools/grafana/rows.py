"""Which panels has the board, and what should an operator do about each?"""

from __future__ import annotations

from typing import Final

from tools.grafana.panels import Panel, Query, Row, Threshold

NAME: Final = "{{model}}:{{version}}"
INSTANCE: Final = "{{model_instance}}"
SERVED: Final = "{{instance}}"


def quantiles(metric: str, *, chosen: str = "<model>") -> list[Query]:
    """p50, p95 and p99 of a histogram, of everything that is chosen together."""
    return [
        Query(
            f"histogram_quantile({share / 100:g},"
            f" sum by (le) (rate({metric}_bucket{{{chosen}}}[<rate>])))",
            f"p{share}",
        )
        for share in (50, 95, 99)
    ]


def by_model(metric: str, share: float) -> list[Query]:
    """A quantile of a histogram, of each model."""
    inner = f"sum by (le, model, version) (rate({metric}_bucket{{<model>}}[<rate>]))"
    return [Query(f"histogram_quantile({share:g}, {inner})", NAME)]


OVERVIEW: Final = Row("Overview", [
    Panel("Servers", "none", "Servers that Prometheus reads. Fewer than were started: look at the"
          " logs of those that are missing.",
          [Query("count(wherry_info{<server>})", "servers")], "stat", 3),
    Panel("Models not ready", "none", "Models by which a new request would make no progress."
          " GET /v2/models has the reason.",
          [Query("sum(1 - wherry_model_ready{<model>})", "not ready")], "stat", 3,
          thresholds=[Threshold(1, "red")]),
    Panel("Requests", "reqps", "Answered requests, failed ones among them.",
          [Query("sum(rate(wherry_requests_total{<model>}[<rate>]))", "requests")], "stat", 3),
    Panel("Failed", "percentunit", "Of all requests, those that were answered with an error; those"
          " whose caller left are not counted. The panel \"Errors\" shows their kinds.",
          [Query('sum(rate(wherry_requests_total{<model>, outcome=~"rejected|backend|other"}'
                 "[<rate>])) / (sum(rate(wherry_requests_total{<model>}[<rate>])) > 0)", "failed")],
          "stat", 3, thresholds=[Threshold(0.01, "orange"), Threshold(0.05, "red")]),
    Panel("p95", "s", "Of 100 successful requests 95 were answered so soon. If it is high, see"
          " whether \"Wait in the queue\" or \"Time of a batch\" is.",
          quantiles("wherry_request_seconds")[1:2], "stat", 3),
    Panel("In flight", "none", "Requests that frontends have taken and not answered.",
          [Query("sum(wherry_requests_in_flight{<server>})", "in flight")], "stat", 3),
    Panel("Refused", "reqps", "Refused before they reached a model, since max_in_flight or"
          " max_queue_bytes was reached: add servers, or raise these if there is memory.",
          [Query("sum(rate(wherry_requests_refused_total{<server>}[<rate>]))", "refused")],
          "stat", 3, thresholds=[Threshold(0.001, "red")]),
    Panel("Busy instances", "none", "Instances at work at a time, in the mean. Near the number of"
          " instances: nothing is in reserve.",
          [Query("sum(rate(wherry_compute_seconds_total{<model>}[<rate>]))", "busy")], "stat", 3),
    Panel("Requests of each model", "reqps", "Answered requests, failed ones among them.",
          [Query("sum by (model, version) (rate(wherry_requests_total{<model>}[<rate>]))", NAME)],
          width=12, stacked=True),
    Panel("Errors", "reqps", "rejected: the queue was full or the deadline passed, so add instances"
          " or callers must slow down. backend: the model raised, or its process died; the log has"
          " the traceback. canceled: the caller left. other: mostly malformed requests.",
          [Query('sum by (model, version, outcome) (rate(wherry_requests_total{<model>,'
                 ' outcome!="success"}[<rate>]))', NAME + " {{outcome}}")], width=12),
    Panel("Latency", "s", "From a request's arrival to its answer, of all that succeeded. Within a"
          " bucket the quantile is interpolated.", quantiles("wherry_request_seconds")),
    Panel("p99 of each model", "s", "Of 100 requests 99 were answered so soon. One model alone: see"
          " its queue and its batches below.", by_model("wherry_request_seconds", 0.99)),
    Panel("In flight and refused", "none", "What each server has taken and not answered, and what"
          " it refuses each second at max_in_flight or max_queue_bytes.",
          [Query("wherry_requests_in_flight{<server>}", SERVED + " in flight"),
           Query("rate(wherry_requests_refused_total{<server>}[<rate>])",
                 SERVED + " refused/s")]),
])  # fmt: skip

BATCHING: Final = Row("Queue and batches", [
    Panel("Queue", "none", "Requests waiting for an instance. If it grows steadily, more come"
          " than are computed: add instances or servers, or set max_queue_wait so that the rest is"
          " refused early.",
          [Query("sum by (model, version) (wherry_queue_depth{<model>})", NAME)]),
    Panel("Wait in the queue", "s", "Time requests waited for an instance. Much of the latency:"
          " more instances or servers help. Little of it: only a quicker model does.",
          quantiles("wherry_queue_seconds")),
    Panel("Predicted wait", "s", "What a request that arrives now will wait, the longest of all"
          " servers. Autoscaling goes by it.",
          [Query("max by (model, version) (wherry_predicted_wait_seconds{<model>})", NAME)]),
    Panel("Rows of a batch", "none", "How many batches had at most this number of rows. All one"
          " row under load: the model takes no batches, or callers send one after the other.",
          [Query("sum by (le) (increase(wherry_batch_size_bucket{<model>}[<rate>]))", "{{le}}")],
          "heatmap"),
    Panel("Mean rows and their bound", "none", "Mean rows of a batch, and how many it may have:"
          " max_batch_size, or fewer after memory ran out. Near the bound under load: raise"
          " max_batch_size.",
          [Query("sum by (model, version) (rate(wherry_batch_size_sum{<model>}[<rate>])) / (sum by"
                 " (model, version) (rate(wherry_batch_size_count{<model>}[<rate>])) > 0)", NAME),
           Query("min by (model, version) (wherry_max_batch_rows{<model>})", NAME + " at most")]),
    Panel("Why batches left", "suffix: batches/s", "full: there was more to do. idle: an instance"
          " was free. waited, delay: a wait was over. deadline: a longer wait would have made a"
          " request late. mixed: a request that could not join came. `wherry explain MODEL`"
          " shows more.",
          [Query("sum by (reason) (rate(wherry_batch_cut_total{<model>}[<rate>])) > 0",
                 "{{reason}}")], stacked=True),
    Panel("Time of a batch", "s", "Mean time of gathering the rows, in the model, and of sorting"
          " the answers.",
          [Query("sum by (model, version, phase) (rate(wherry_compute_seconds_total{<model>}"
                 "[<rate>])) / on (model, version) group_left () (sum by (model, version)"
                 " (rate(wherry_batch_size_count{<model>}[<rate>])) > 0)", NAME + " {{phase}}")]),
    Panel("Learnt time of a batch", "s", "What the batcher believes that a batch takes, by its"
          " rows. If 32 rows take little longer than one, larger batches are free.",
          [Query("avg by (model, version) (wherry_batch_fixed_seconds{<model>} +"
                 f" {rows} * wherry_batch_row_seconds{{<model>}})", f"{NAME} {rows} rows")
           for rows in (1, 8, 32)]),
    Panel("Held", "percentunit", "Share of the time in which an instance was free while a batch"
          " waited by decision: for callers that send again, its turn, or the delay that was"
          " set.",
          [Query("sum by (model, version, for) (rate(wherry_batch_held_seconds_total{<model>}"
                 "[<rate>]))", NAME + " {{for}}")]),
    Panel("Rejected by their queue", "reqps", "Refused with a full queue or past the deadline; of"
          " these, in time, since they would have been late. Add instances, or raise max_queue_size"
          " where callers can wait.",
          [Query("sum by (model, version) (rate(wherry_rejected_total{<model>}[<rate>]))", NAME),
           Query("sum by (model, version) (rate(wherry_rejected_predicted_late_total{<model>}"
                 "[<rate>]))", NAME + " predicted late")]),
    Panel("Callers that return", "percentunit", "Learnt share of callers that send again right"
          " after an answer. High: batches may wait for them.",
          [Query("avg by (model, version) (wherry_returning_ratio{<model>})", NAME)], most=1),
    Panel("Responses of streams", "suffix: responses/s", "Responses that streaming requests were"
          " sent.",
          [Query("sum by (model, version) (rate(wherry_stream_responses_total{<model>}[<rate>]))",
                 NAME)]),
])  # fmt: skip

INSTANCES: Final = Row("Instances and workers", [
    Panel("Ready", "none", "Whether a new request would make progress. Red: GET /v2/models has"
          " the reason; the log has the traceback of a failed load.",
          [Query("min by (model, version, instance) (wherry_model_ready{<model>})",
                 NAME + " " + SERVED)],
          "state-timeline", 12, named=[(0, "not ready", "red"), (1, "ready", "green")]),
    Panel("Busy instances of each model", "none", "Instances at work at a time, in the mean: 1 is"
          " one that is always at work.",
          [Query("sum by (model, version) (rate(wherry_compute_seconds_total{<model>}[<rate>]))",
                 NAME),
           Query("sum by (model, version) (wherry_batches_running{<model>})",
                 NAME + " batches now")], width=12),
    Panel("Restarts", "none", "Instances that came back after they died, in the last five minutes."
          " Again and again: see \"Deaths\" for the cause.",
          [Query("sum by (model, version) (increase(wherry_worker_restarts_total{<model>}[5m]))",
                 NAME)], width=6),
    Panel("Deaths", "none", "Since the server's start. SIGKILL: mostly out of memory. SIGSEGV:"
          " native code of the model. hang: longer than execution_timeout. load: it cannot be"
          " loaded again.",
          [Query("sum by (model, version, cause) (wherry_worker_deaths_total{<model>})",
                 NAME + " {{cause}}")], width=6),
    Panel("Next try", "s", "Until an instance of a model that has none is tried again. Above 0 the"
          " model serves no requests.",
          [Query("max by (model, version) (wherry_model_next_try_seconds{<model>})", NAME)],
          width=6),
    Panel("Poisoned requests", "reqps", "Refused, since each worker that runs them dies: the log"
          " names them. Somebody sends what crashes the model.",
          [Query("sum by (model, version) (rate(wherry_poisoned_requests_total{<model>}[<rate>]))",
                 NAME)], width=6),
    Panel("Memory of workers", "bytes", "Resident memory of each instance's process. If it only"
          " grows, the model leaks.",
          [Query("wherry_worker_rss_bytes{<model>}", SERVED + " " + INSTANCE)], width=12),
    Panel("Load time", "s", "That the loaded version took to be ready. Probes and rollouts must"
          " wait so long.",
          [Query("max by (model, version) (nv_model_load_time{<model>})", NAME)], width=12),
])  # fmt: skip

SERVERS: Final = Row("Servers: event loop and process", [
    Panel("Event loop's stall", "s", "How late the loop woke up: so long waited whatever came."
          " Above 0.1 s something blocks it: large JSON bodies, a model in the caller's thread, or"
          " too few cores. More fronts help (--fronts).",
          quantiles("wherry_loop_stall_seconds", chosen="<server>"),
          thresholds=[Threshold(0.1, "red")]),
    Panel("Longest stall", "s", "The longest of the last one to two minutes.",
          [Query("wherry_loop_stall_longest_seconds{<server>}", SERVED)]),
    Panel("Requests of each server", "reqps", "Unequal: the load balancer keeps connections, or"
          " a server is slow.",
          [Query("sum by (instance) (rate(wherry_requests_total{<model>}[<rate>]))", SERVED)]),
    Panel("Predicted wait of each server", "s", "What a request that arrives now will wait. Of a"
          " pool: unequal for long means that rows cannot go to the quicker owner.",
          [Query("max by (instance) (wherry_predicted_wait_seconds{<model>})", SERVED)]),
    Panel("CPU of the server's process", "none", "Cores. One event loop cannot use more than one:"
          " near 1 use more fronts (--fronts).",
          [Query("rate(process_cpu_seconds_total{<server>}[<rate>])", SERVED)]),
    Panel("Memory of the server's process", "bytes", "Resident memory, without workers and fronts.",
          [Query("process_resident_memory_bytes{<server>}", SERVED)]),
    Panel("Held by requests", "bytes", "What the requests that wait or run hold, of at most"
          " max_queue_bytes.",
          [Query("wherry_request_bytes{<server>}", SERVED)]),
    Panel("Open descriptors", "percentunit", "Of those that the process may have. Near 1: raise the"
          " limit (ulimit -n), or lower the number of connections.",
          [Query("process_open_fds{<server>} / process_max_fds{<server>}", SERVED)], most=1,
          thresholds=[Threshold(0.9, "red")]),
])  # fmt: skip

MACHINE: Final = Row("Machine and container", [
    Panel("CPU of the machine", "percentunit", "All its processors, all programs. Near 1:"
          " everything waits, so add machines or take other programs away.",
          [Query("nv_cpu_utilization{<server>}", SERVED)], most=1),
    Panel("Memory of the machine", "percentunit", "Used and not available to programs.",
          [Query("nv_cpu_memory_used_bytes{<server>} / nv_cpu_memory_total_bytes{<server>}",
                 SERVED)], most=1, thresholds=[Threshold(0.9, "red")]),
    Panel("Memory of the container", "percentunit", "Of what the server and its workers may use; of"
          " the machine, if they have no limit. Near 1 the kernel kills workers (SIGKILL): fewer"
          " instances, smaller batches, or more memory.",
          [Query("wherry_memory_used_bytes{<server>} / wherry_memory_limit_bytes{<server>}",
                 SERVED)], most=1, thresholds=[Threshold(0.9, "red")]),
])  # fmt: skip

GPU: Final = Row("GPUs (of NVIDIA's dcgm-exporter, if Prometheus reads it)", [
    Panel("GPU use", "percent", "Of the time in which something ran. Low under load: batches are"
          " small, or the model waits for the CPU.",
          [Query("DCGM_FI_DEV_GPU_UTIL", "{{Hostname}} {{gpu}}")], most=100),
    Panel("GPU memory", "percentunit", "Near 1: fewer instances, smaller batches, or fewer blocks"
          " of the key-value cache.",
          [Query("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
                 "{{Hostname}} {{gpu}}")], most=1),
    Panel("GPU temperature", "celsius", "A hot GPU lowers its clock, and batches take longer.",
          [Query("DCGM_FI_DEV_GPU_TEMP", "{{Hostname}} {{gpu}}")]),
], folded=True)  # fmt: skip

FRONTS: Final = Row("Fronts (of servers with --fronts)", [
    Panel("Fronts", "none", "Processes that serve clients.",
          [Query("wherry_fronts{<server>}", SERVED),
           Query("increase(wherry_front_restarts_total{<server>}[5m])", SERVED + " replaced")]),
    Panel("Connections", "none", "Open over HTTP, and calls over gRPC. All at one front: clients"
          " that keep one connection.",
          [Query("wherry_front_connections{<server>}", SERVED + " {{front}}"),
           Query("wherry_front_calls{<server>}", SERVED + " {{front}} gRPC")]),
    Panel("CPU of fronts", "none", "Cores. Near 1 each: more of them.",
          [Query("rate(wherry_front_cpu_seconds_total{<server>}[<rate>])", SERVED + " {{front}}")]),
    Panel("Memory of fronts", "bytes", "Resident memory of each process.",
          [Query("wherry_front_resident_memory_bytes{<server>}", SERVED + " {{front}}")], width=12),
    Panel("Descriptors of fronts", "none", "Open ones of each process: connections for the most"
          " part.",
          [Query("wherry_front_open_fds{<server>}", SERVED + " {{front}}")], width=12),
], folded=True)  # fmt: skip


def each_instance(metric: str) -> str:
    """The increase each second of a counter of language models, of each model."""
    return f"sum by (model, version) (rate({metric}{{<model>}}[<rate>]))"


LLM: Final = Row("Language models", [
    Panel("Tokens", "suffix: tokens/s", "Generated, and of prompts that had to be computed.",
          [Query(each_instance("wherry_llm_generation_tokens_total"), NAME + " generated"),
           Query(each_instance("wherry_llm_prompt_tokens_total"), NAME + " of prompts")]),
    Panel("Time to the first token", "s", "From a request's arrival. High while sequences wait: the"
          " engine is full, so add servers.", quantiles("wherry_first_response_seconds")),
    Panel("Time between tokens", "s", "What a reader sees as speed. High with many sequences: lower"
          " max_batch_size, or add servers.", quantiles("wherry_next_response_seconds")),
    Panel("Running and waiting", "none", "Sequences in the engine's steps, and those that wait for"
          " room. Some always wait: add servers.",
          [Query("sum by (model, version) (wherry_llm_requests_running{<model>})",
                 NAME + " running"),
           Query("sum by (model, version) (wherry_llm_requests_waiting{<model>})",
                 NAME + " waiting")]),
    Panel("Key-value cache", "percentunit", "Blocks in use. Near 1 sequences are put back: more"
          " blocks, shorter answers, or fewer sequences at once.",
          [Query("wherry_llm_kv_cache_usage_ratio{<model>}", SERVED + " " + INSTANCE)], most=1,
          thresholds=[Threshold(0.95, "red")]),
    Panel("Sequences put back", "suffix: /s", "Since the key-value blocks ran out: each is computed"
          " again.",
          [Query(each_instance("wherry_llm_preemptions_total"), NAME)]),
    Panel("Prompt tokens that were known", "percentunit", "Of those looked up. Low with a common"
          " beginning: put what changes at the end of the prompt, or more blocks.",
          [Query(each_instance("wherry_llm_prefix_cache_hits_total") + " / ("
                 + each_instance("wherry_llm_prefix_cache_queries_total") + " > 0)", NAME)],
          most=1),
    Panel("Time of a step", "s", "Mean time of a step, and in the model itself: the rest is spent"
          " choosing, sampling and sending.",
          [Query(each_instance(f"wherry_llm_{part}_seconds_total") + " / ("
                 + each_instance("wherry_llm_steps_total") + " > 0)", f"{NAME} {part}")
           for part in ("step", "model")]),
    Panel("First tokens by time", "s", "How many requests had their first token within this time.",
          [Query("sum by (le) (increase(wherry_first_response_seconds_bucket{<model>}[<rate>]))",
                 "{{le}}")], "heatmap"),
], folded=True)  # fmt: skip

CACHE: Final = Row("Response cache", [
    Panel("Answered from the cache", "percentunit", "Of the requests that were looked up. Near 0:"
          " callers do not repeat themselves, so turn response_cache off.",
          [Query("sum by (model, version) (rate(nv_cache_num_hits_per_model{<model>}[<rate>])) /"
                 " (sum by (model, version) (rate(nv_cache_num_hits_per_model{<model>}[<rate>]) +"
                 " rate(nv_cache_num_misses_per_model{<model>}[<rate>])) > 0)", NAME)], most=1),
    Panel("Use of its memory", "percentunit", "Full with many evictions: give it more bytes.",
          [Query("nv_cache_util{<server>}", SERVED)], most=1),
    Panel("Answers in it", "none", "Entries, and how many a second made room for others.",
          [Query("nv_cache_num_entries{<server>}", SERVED),
           Query("rate(nv_cache_num_evictions{<server>}[<rate>])", SERVED + " evicted/s")]),
    Panel("Time of a lookup", "s", "Mean. Large requests take longer, as they are hashed.",
          [Query("1e-6 * rate(nv_cache_lookup_duration{<server>}[<rate>]) /"
                 " (rate(nv_cache_num_lookups{<server>}[<rate>]) > 0)", SERVED)]),
], folded=True)  # fmt: skip

ROWS: Final = (OVERVIEW, BATCHING, INSTANCES, SERVERS, MACHINE, LLM, FRONTS, CACHE, GPU)

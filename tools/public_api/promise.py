"""Which modules are a promise, and which of their names are not meant?"""

#: Whose `__all__` is a promise; docs/reference/public-api.md says so.
MODULES = ("wherry", "wherry.deploy", "wherry.llm", "wherry.testing")

#: Methods of public classes by which wherry's own parts speak with each other: no name for users.
BETWEEN_PARTS = frozenset({
    "Model.cache_identity", "Model.calls_others", "Model.check_signature", "Model.constructed_with",
    "Model.custom_metrics", "Model.give_back",
    "Model.is_ensemble", "Model.make_instance", "Model.may_have_variant", "Model.metric_labels",
    "Model.output_labels", "Model.serve_no_more_through", "Model.serve_through",
    "Model.take", "Model.variable_strings", "Model.variants",
    "Model.warmup_batches",
    "Runtime.answer", "Runtime.expect", "Runtime.expect_no_more", "Runtime.forked",
    "Runtime.load_all", "Runtime.port", "Runtime.responses",
})  # fmt: skip

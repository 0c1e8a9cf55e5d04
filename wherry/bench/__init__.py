"""How does a person find out what a server can take, and how long callers wait then?

Reading order: `plan` (what load is asked for), `schedule` (when each request is meant to start),
`inputs` and `encode` (what is in it), `sources` (when the next one is sent), `load_run`,
`connector` and `connection` (how it is sent), `record` (what happened to each), `figures` (what
that means), `report` and `page` (how it is shown).
"""

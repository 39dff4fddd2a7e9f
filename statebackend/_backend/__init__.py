"""The composition root: puts the rooms together. The only place that names concrete stores, tables and uploaders.

`opening` is where to begin: it opens a backend, or a coordinator, and owns the task group in which uploads run. `job`
looks where a job stands and claims it, `stores` opens its primary and its local copies, `tables` what its states lie
in, `copies` chooses who writes which copy, `wiring` fills the states and puts a backend together from all of these.
`downloads` opens a cache for several backends.
"""

"""The composition root: puts the rooms together. The only place that names concrete stores, tables and uploaders.

Begin with `opening`: it opens a backend or a coordinator, and owns the task group in which uploads run. `job` finds
where a job stands and claims it, `stores` opens its primary and its local copies, `tables` the tables of its states,
`copy_writers` chooses who writes which copy, `assembly` fills the states and builds a backend from all of these.
`downloads` opens a cache that several backends share.
"""

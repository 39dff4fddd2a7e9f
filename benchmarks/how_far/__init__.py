"""How far a job can grow: what a batch a second takes with up to 1,000 owners and a thousand million keys.

    python -m benchmarks.how_far            the tables of docs/explanation/how-far.md, in a minute

Sizes come from commits that are really encoded, prices from `Prices`, times from the library's own code in virtual
time: it runs on a store with S3's published limits, so they are those of requests and nothing else. CPU is measured
apart, on this machine. What is left is arithmetic, in `Envelope`.
"""

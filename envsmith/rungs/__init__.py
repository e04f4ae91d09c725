"""The payloads of the smoke ladder: they run inside the target env, never in envsmith's own process.

envsmith copies this folder as the package `envsmith_rungs` and starts `python -m envsmith_rungs.<module> TASK.json`
for every rank. At the top of a module stands nothing but the standard library; torch, transformers, ray and vllm are
imported where they are used, so that a missing one is the rung's answer and not a failed import of something else.
Every module is a file with a main guard: spawned children import the main module again (facts/symptoms.md D49).
"""

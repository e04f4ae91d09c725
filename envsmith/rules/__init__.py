"""Rules: what is known to fail on a machine, in a job or with certain versions, judged before anything is built."""

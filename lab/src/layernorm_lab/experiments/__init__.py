"""The paper's experiments: one folder an experiment. The rooms that all of them share are beside this one."""

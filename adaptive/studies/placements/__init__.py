"""Which placement of the tables on which machine: throughput, what limits it, throughput per watt; modelled."""

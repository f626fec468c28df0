"""Several coordinators and a cluster of etcd, in virtual time: their faults, and what must hold."""

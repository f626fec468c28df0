"""A journal that several coordinators share, on etcd."""

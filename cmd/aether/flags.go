package main

import (
	"github.com/spf13/pflag"

	"github.com/aether-federation/aether/internal/config"
)

// registrarFlags binds flags to c, whose values are the defaults.
func registrarFlags(f *pflag.FlagSet, c *config.Registrar) {
	f.StringVar(&c.Region, "region", c.Region, "name of this region")
	f.StringVar(&c.ClusterName, "cluster-name", c.ClusterName, "name of this cluster, whose endpoints are registered here")

	f.StringSliceVar(&c.EtcdEndpoints, "etcd-endpoints", c.EtcdEndpoints, "the region's own etcd (none: an embedded one)")
	f.StringVar(&c.EtcdCA, "etcd-ca", c.EtcdCA, "authority of the own etcd, PEM")
	f.StringVar(&c.EtcdCert, "etcd-cert", c.EtcdCert, "client certificate for the own etcd, PEM")
	f.StringVar(&c.EtcdKey, "etcd-key", c.EtcdKey, "its key, PEM")
	f.StringVar(&c.EtcdUser, "etcd-user", c.EtcdUser, "user at the own etcd")
	f.StringVar(&c.EtcdPasswordFile, "etcd-password-file", c.EtcdPasswordFile, "file with the user's password")
	f.DurationVar(&c.EtcdStartTimeout, "etcd-start-timeout", c.EtcdStartTimeout, "how long to wait for the own etcd before giving up")
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "where an embedded etcd keeps its data")
	f.StringVar(&c.EmbeddedEtcdClientURL, "embedded-etcd-client-url", c.EmbeddedEtcdClientURL, "where an embedded etcd serves clients, peers' replicators too")

	f.StringArrayVar(&c.PeerEtcd, "peer-etcd", c.PeerEtcd, "region to mirror to, as region=endpoint[,endpoint…]; may be repeated")
	f.DurationVar(&c.LeaseTTL, "lease-ttl", c.LeaseTTL, "how long peers serve this region once it is gone")

	f.DurationVar(&c.PresenceTTL, "presence-ttl", c.PresenceTTL, "how long a node is present after it reported")
	f.DurationVar(&c.SweepGrace, "sweep-grace", c.SweepGrace, "how long a node must be absent before its endpoints are removed, and a cluster before it is served as unhealthy")
	f.Float64Var(&c.SweepMaxShare, "sweep-max-share", c.SweepMaxShare, "share of the cluster's endpoints that may be removed within one grace, up to 1")

	f.StringVar(&c.GRPCAddress, "grpc-address", c.GRPCAddress, "where to serve gRPC")
	f.StringVar(&c.HTTPAddress, "http-address", c.HTTPAddress, "where to serve HTTP")
	f.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "certificate of both listeners, PEM")
	f.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "its key, PEM")
	f.StringVar(&c.TLSClientCA, "tls-client-ca", c.TLSClientCA, "serve only clients with a certificate of this authority, PEM")
	f.BoolVar(&c.InsecureListen, "insecure-listen", c.InsecureListen, "allow plain text beyond loopback")

	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
}

// merge returns the file's configuration with the flags that were given.
func merge(given *pflag.FlagSet, file string) (config.Registrar, error) {
	c, err := config.Load(file)
	if err != nil {
		return c, err
	}
	into := pflag.NewFlagSet("", pflag.ContinueOnError)
	registrarFlags(into, &c)
	given.Visit(func(f *pflag.Flag) {
		if target := into.Lookup(f.Name); target != nil && err == nil {
			err = copyValue(target.Value, f.Value)
		}
	})
	return c, err
}

func copyValue(to, from pflag.Value) error {
	if list, ok := from.(pflag.SliceValue); ok {
		return to.(pflag.SliceValue).Replace(list.GetSlice())
	}
	return to.Set(from.String())
}

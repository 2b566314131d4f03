package main

import (
	"github.com/spf13/pflag"

	"github.com/aether-federation/aether/internal/config"
)

// registrarFlags binds flags to c, whose values are the defaults.
func registrarFlags(f *pflag.FlagSet, c *config.Registrar) {
	regionFlags(f, c)
	f.StringVar(&c.ClusterName, "cluster-name", c.ClusterName, "name of this cluster, whose endpoints are registered here")
	f.DurationVar(&c.EtcdStartTimeout, "etcd-start-timeout", c.EtcdStartTimeout, "how long to wait for the own etcd before giving up")
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "where an embedded etcd keeps its data")
	f.StringVar(&c.EmbeddedEtcdClientURL, "embedded-etcd-client-url", c.EmbeddedEtcdClientURL, "where an embedded etcd serves clients, peers' replicators too")

	peerFlags(f, c)
	f.DurationVar(&c.LeaseTTL, "lease-ttl", c.LeaseTTL, "how long peers serve this region once it is gone; below 10s little is left for a handover between registrars")

	f.DurationVar(&c.PresenceTTL, "presence-ttl", c.PresenceTTL, "how long a node is present after it reported")
	f.DurationVar(&c.SweepGrace, "sweep-grace", c.SweepGrace, "how long a node must be absent before its endpoints are removed, and a cluster before it is served as unhealthy")
	f.Float64Var(&c.SweepMaxShare, "sweep-max-share", c.SweepMaxShare, "share of the cluster's endpoints that may be removed within one grace, up to 1")

	f.StringVar(&c.GRPCAddress, "grpc-address", c.GRPCAddress, "where to serve gRPC")
	f.StringVar(&c.HTTPAddress, "http-address", c.HTTPAddress, "where to serve HTTP")
	f.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "certificate of both listeners, PEM")
	f.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "its key, PEM")
	f.StringVar(&c.TLSClientCA, "tls-client-ca", c.TLSClientCA, "serve only clients with a certificate of this authority, PEM")
	f.StringVar(&c.Auth, "auth", c.Auth, "YAML file that says which client certificates may do what, or off")
	f.Float64Var(&c.ClientRate, "client-rate", c.ClientRate, "calls a second that one client may make (0: no limit)")
	f.IntVar(&c.ClientBurst, "client-burst", c.ClientBurst, "calls at once that one client may make")
	f.IntVar(&c.ClientStreams, "client-streams", c.ClientStreams, "watches that one client may have open (0: no limit)")
	f.IntVar(&c.ClientConnections, "client-connections", c.ClientConnections, "connections that one address may have open (0: no limit)")
	f.StringVar(&c.Lapsed, "lapsed", c.Lapsed, "what becomes of a region that lapsed: withdraw, or last-resort: serve it to services with nothing healthy left")
	f.StringVar(&c.Network, "network", c.Network, "address space of clients that name none; they reach endpoints of another one by gateways")
	f.StringSliceVar(&c.RegionOrder, "region-order", c.RegionOrder, "regions from the nearest, for the order in which xDS clients fail over")
	f.Float64Var(&c.SpillFactor, "spill-factor", c.SpillFactor, "how many times its share each endpoint can take before traffic of xDS clients spills over to the next tier")
	f.Float64Var(&c.SpillCeiling, "spill-ceiling", c.SpillCeiling, "share of an xDS client's traffic that one other region takes at most, up to 1")
	f.BoolVar(&c.InsecureListen, "insecure-listen", c.InsecureListen, "allow plain text beyond loopback")

	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
}

// regionFlags say which region this is, and which its own etcd.
func regionFlags(f *pflag.FlagSet, c *config.Registrar) {
	f.StringVar(&c.Region, "region", c.Region, "name of this region")
	etcdFlags(f, c)
}

// etcdFlags say how an etcd is reached.
func etcdFlags(f *pflag.FlagSet, c *config.Registrar) {
	f.StringSliceVar(&c.EtcdEndpoints, "etcd-endpoints", c.EtcdEndpoints, "the region's own etcd (none: an embedded one)")
	f.StringVar(&c.EtcdCA, "etcd-ca", c.EtcdCA, "authority of the own etcd, PEM")
	f.StringVar(&c.EtcdCert, "etcd-cert", c.EtcdCert, "client certificate for the own etcd, PEM")
	f.StringVar(&c.EtcdKey, "etcd-key", c.EtcdKey, "its key, PEM")
	f.StringVar(&c.EtcdUser, "etcd-user", c.EtcdUser, "user at the own etcd")
	f.StringVar(&c.EtcdPasswordFile, "etcd-password-file", c.EtcdPasswordFile, "file with the user's password")
}

// peerFlags say which peers there are and how their etcds are reached.
func peerFlags(f *pflag.FlagSet, c *config.Registrar) {
	f.StringArrayVar(&c.PeerEtcd, "peer-etcd", c.PeerEtcd, "region to mirror to, as region=endpoint[,endpoint…]; may be repeated, as all --peer-… flags")
	f.StringArrayVar(&c.PeerEtcdCA, "peer-etcd-ca", c.PeerEtcdCA, "authority of a peer's etcd, as region=file, PEM")
	f.StringArrayVar(&c.PeerEtcdCert, "peer-etcd-cert", c.PeerEtcdCert, "client certificate for a peer's etcd, as region=file, PEM")
	f.StringArrayVar(&c.PeerEtcdKey, "peer-etcd-key", c.PeerEtcdKey, "its key, as region=file, PEM")
	f.StringArrayVar(&c.PeerEtcdServerName, "peer-etcd-server-name", c.PeerEtcdServerName, "name in a peer's certificate, where its endpoints are not, as region=name")
	f.StringArrayVar(&c.PeerEtcdUser, "peer-etcd-user", c.PeerEtcdUser, "user at a peer's etcd, as region=name")
	f.StringArrayVar(&c.PeerEtcdPasswordFile, "peer-etcd-password-file", c.PeerEtcdPasswordFile, "file with the user's password, as region=file (or $AETHER_PEER_<REGION>_PASSWORD)")
}

// merge returns the file's configuration with the flags that were given.
func merge(given *pflag.FlagSet, file string) (config.Registrar, error) {
	return mergeFlags(given, file, config.Load, registrarFlags)
}

func mergeFlags[T any](given *pflag.FlagSet, file string, load func(string) (T, error), bind func(*pflag.FlagSet, *T)) (T, error) {
	c, err := load(file)
	if err != nil {
		return c, err
	}
	into := pflag.NewFlagSet("", pflag.ContinueOnError)
	bind(into, &c)
	given.Visit(func(f *pflag.Flag) {
		if target := into.Lookup(f.Name); target != nil && err == nil {
			err = copyValue(target.Value, f.Value)
		}
	})
	return c, err
}

// agentFlags binds flags to c, whose values are the defaults.
func agentFlags(f *pflag.FlagSet, c *config.Agent) {
	f.StringVar(&c.Node, "node", c.Node, "name of this machine, unlike any other of its cluster (default: the host name)")
	f.StringSliceVar(&c.Registrar, "registrar", c.Registrar, "gRPC addresses of this cluster's registrars, or a DNS name of all")
	f.StringVar(&c.IP, "ip", c.IP, "address of endpoints that name none")
	f.StringVar(&c.Zone, "zone", c.Zone, "zone of this machine")
	f.StringVar(&c.Network, "network", c.Network, "address space of this machine (none: one flat network)")
	f.StringSliceVar(&c.Sources, "sources", c.Sources, "YAML files with services, and directories of them")
	f.StringVar(&c.StateDir, "state-dir", c.StateDir, "what is remembered over a restart")

	f.StringSliceVar(&c.WatchServices, "watch-services", c.WatchServices, "services that programs on this machine ask for (none: all)")
	f.StringSliceVar(&c.RegionOrder, "region-order", c.RegionOrder, "other regions, the nearest first, for DNS and xDS")
	f.StringVar(&c.Socket, "socket", c.Socket, "Unix socket to serve gRPC and HTTP at (none: nowhere)")
	f.StringVar(&c.GRPCAddress, "grpc-address", c.GRPCAddress, "where to serve gRPC to programs on this machine")
	f.StringVar(&c.HTTPAddress, "http-address", c.HTTPAddress, "where to serve HTTP to them")
	f.StringVar(&c.DNSAddress, "dns-address", c.DNSAddress, "where to serve DNS to them, such as 127.0.0.1:8600 (none: nowhere)")
	f.BoolVar(&c.InsecureListen, "insecure-listen", c.InsecureListen, "allow listeners beyond loopback")

	f.BoolVar(&c.TLS, "tls", c.TLS, "use TLS to registrars, trusting the system's authorities")
	f.StringVar(&c.TLSCA, "tls-ca", c.TLSCA, "use TLS, trusting this PEM file's authorities")
	f.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "client certificate of this node, PEM")
	f.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "its key, PEM")

	f.DurationVar(&c.DrainGrace, "drain-grace", c.DrainGrace, "how long endpoints drain when the agent stops, before they are deregistered")
	f.StringVar(&c.StopHook, "stop-hook", c.StopHook, "shell command that returns once they have drained, in place of the grace")
	f.BoolVar(&c.KeepOnExit, "keep-on-exit", c.KeepOnExit, "leave everything registered when the agent stops, for one that comes back soon")

	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	f.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
}

func copyValue(to, from pflag.Value) error {
	if list, ok := from.(pflag.SliceValue); ok {
		return to.(pflag.SliceValue).Replace(list.GetSlice())
	}
	return to.Set(from.String())
}

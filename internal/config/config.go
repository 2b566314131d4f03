// Package config is what `aether registrar` and `aether agent` can be told, by flags
// or by a YAML file whose keys are the flags' names, and what of it is allowed.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/aether-federation/aether/internal/xds"
)

// Local is the region and the cluster of a registrar that was told neither: one
// region, no peers.
const Local = "local"

// Defaults of what is not given.
const (
	DefaultLeaseTTL              = 30 * time.Second
	DefaultPresenceTTL           = 30 * time.Second
	DefaultSweepGrace            = 5 * time.Minute
	DefaultSweepMaxShare         = 0.3
	DefaultGRPCAddress           = "127.0.0.1:8443"
	DefaultHTTPAddress           = "127.0.0.1:8080"
	DefaultDataDir               = "aether-data"
	DefaultEmbeddedEtcdClientURL = "http://127.0.0.1:2379"
	DefaultEtcdStartTimeout      = 30 * time.Second

	// A client's share: more than an agent needs, less than harms the others.
	DefaultClientRate        = 2000
	DefaultClientBurst       = 4000
	DefaultClientStreams     = 10000
	DefaultClientConnections = 1000

	// AuthOff lets every client do everything.
	AuthOff = "off"
	// LapsedWithdraw and LapsedLastResort are what --lapsed takes.
	LapsedWithdraw   = "withdraw"
	LapsedLastResort = "last-resort"

	minPresenceTTL = 2 * time.Second
	minSweepGrace  = time.Second

	minLeaseTTL = 3 * time.Second
	maxLeaseTTL = time.Hour
)

// Registrar is the configuration of one registrar process.
type Registrar struct {
	Region      string `yaml:"region"`
	ClusterName string `yaml:"cluster-name"`

	// EtcdEndpoints of the region's own etcd. None: an embedded one.
	EtcdEndpoints []string `yaml:"etcd-endpoints"`
	EtcdCA        string   `yaml:"etcd-ca"`
	EtcdCert      string   `yaml:"etcd-cert"`
	EtcdKey       string   `yaml:"etcd-key"`
	EtcdUser      string   `yaml:"etcd-user"`
	// EtcdPasswordFile holds the password of EtcdUser.
	EtcdPasswordFile string `yaml:"etcd-password-file"`
	// EtcdStartTimeout bounds the wait for the own etcd's first answer.
	EtcdStartTimeout time.Duration `yaml:"etcd-start-timeout"`

	// DataDir of the embedded etcd.
	DataDir               string `yaml:"data-dir"`
	EmbeddedEtcdClientURL string `yaml:"embedded-etcd-client-url"`

	// PeerEtcd entries are <region>=<endpoint>[,<endpoint>…].
	PeerEtcd []string `yaml:"peer-etcd"`
	// PeerEtcdCA and those below say, in entries <region>=<value>, how the etcd of
	// one of the peers is reached, and who one is there.
	PeerEtcdCA           []string `yaml:"peer-etcd-ca"`
	PeerEtcdCert         []string `yaml:"peer-etcd-cert"`
	PeerEtcdKey          []string `yaml:"peer-etcd-key"`
	PeerEtcdServerName   []string `yaml:"peer-etcd-server-name"`
	PeerEtcdUser         []string `yaml:"peer-etcd-user"`
	PeerEtcdPasswordFile []string `yaml:"peer-etcd-password-file"`
	// PeerList is all that in one place for each peer; by file only. What the
	// entries above say of the same peer wins.
	PeerList []Peer `yaml:"peers"`
	// LeaseTTL of the mirrors that this region keeps at its peers.
	LeaseTTL time.Duration `yaml:"lease-ttl"`

	// PresenceTTL is how long a node is present after a report.
	PresenceTTL time.Duration `yaml:"presence-ttl"`
	// SweepGrace is how long a node must be absent before its endpoints go.
	SweepGrace time.Duration `yaml:"sweep-grace"`
	// SweepMaxShare of the cluster's endpoints may go within one grace.
	SweepMaxShare float64 `yaml:"sweep-max-share"`

	GRPCAddress string `yaml:"grpc-address"`
	HTTPAddress string `yaml:"http-address"`
	TLSCert     string `yaml:"tls-cert"`
	TLSKey      string `yaml:"tls-key"`
	// TLSClientCA: only clients with a certificate of this authority are served.
	TLSClientCA string `yaml:"tls-client-ca"`
	// Auth is a file that says who may do what, or AuthOff.
	Auth string `yaml:"auth"`
	// ClientRate is how many calls a second one client may make, ClientBurst how
	// many at once, ClientStreams and ClientConnections how many it may have open.
	// 0: no limit.
	ClientRate        float64 `yaml:"client-rate"`
	ClientBurst       int     `yaml:"client-burst"`
	ClientStreams     int     `yaml:"client-streams"`
	ClientConnections int     `yaml:"client-connections"`
	// Lapsed says what becomes of a region that has lapsed: LapsedWithdraw or
	// LapsedLastResort.
	Lapsed string `yaml:"lapsed"`
	// Network is the address space of clients that name none: what endpoints of
	// another one are reached by is their gateway.
	Network string `yaml:"network"`
	// RegionOrder is the regions from the nearest, for clients of xDS.
	RegionOrder []string `yaml:"region-order"`
	// SpillFactor is how much more than its share each endpoint can take before
	// part of the traffic goes to the next tier, SpillCeiling how much of a
	// client's traffic one other region takes at most.
	SpillFactor  float64 `yaml:"spill-factor"`
	SpillCeiling float64 `yaml:"spill-ceiling"`
	// InsecureListen allows plain text beyond loopback.
	InsecureListen bool `yaml:"insecure-listen"`

	LogLevel  string `yaml:"log-level"`
	LogFormat string `yaml:"log-format"`
}

// Peer is one region to mirror to, and how its etcd is reached.
type Peer struct {
	Region    string   `yaml:"region"`
	Endpoints []string `yaml:"endpoints"`
	CA        string   `yaml:"ca"`
	Cert      string   `yaml:"cert"`
	Key       string   `yaml:"key"`
	// ServerName is in the etcd's certificate where its endpoints are not.
	ServerName string `yaml:"server-name"`
	User       string `yaml:"user"`
	// PasswordFile holds the password of User. Without one it is in the environment
	// variable that PasswordVariable names.
	PasswordFile string `yaml:"password-file"`
}

// Default returns the configuration of a registrar that was told nothing.
func Default() Registrar {
	return Registrar{
		Region:                Local,
		ClusterName:           Local,
		EtcdStartTimeout:      DefaultEtcdStartTimeout,
		DataDir:               DefaultDataDir,
		EmbeddedEtcdClientURL: DefaultEmbeddedEtcdClientURL,
		LeaseTTL:              DefaultLeaseTTL,
		PresenceTTL:           DefaultPresenceTTL,
		SweepGrace:            DefaultSweepGrace,
		SweepMaxShare:         DefaultSweepMaxShare,
		GRPCAddress:           DefaultGRPCAddress,
		HTTPAddress:           DefaultHTTPAddress,
		ClientRate:            DefaultClientRate,
		ClientBurst:           DefaultClientBurst,
		ClientStreams:         DefaultClientStreams,
		ClientConnections:     DefaultClientConnections,
		Lapsed:                LapsedWithdraw,
		SpillFactor:           xds.DefaultFactor,
		SpillCeiling:          1,
		LogLevel:              "info",
		LogFormat:             "text",
	}
}

// Load returns the defaults changed by the file at path.
func Load(path string) (Registrar, error) { return load(path, Default()) }

// load returns c changed by the file at path.
func load[T any](path string, c T) (T, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	c, err = parse(b, c)
	if err != nil {
		return c, fmt.Errorf("parse configuration %s: %w", path, err)
	}
	return c, nil
}

// advised adds to a YAML error what is wanted instead, where its own text does not
// tell.
func advised(err error) error {
	mistakes, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return err
	}
	for i, text := range mistakes.Errors {
		if strings.HasSuffix(text, "into time.Duration") {
			mistakes.Errors[i] = text + ": want a duration such as 30s"
		}
	}
	return mistakes
}

// Parse returns the defaults changed by a YAML document. A key that is not known
// is an error; an empty document changes nothing.
func Parse(document []byte) (Registrar, error) {
	return parse(document, Default())
}

// parse returns c changed by a YAML document.
func parse[T any](document []byte, c T) (T, error) {
	var none T
	d := yaml.NewDecoder(bytes.NewReader(document))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return none, advised(err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return none, errors.New("more than one YAML document")
	}
	return c, nil
}

package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/aether-federation/aether/registry"
)

// Bootstrap is what a gRPC client has to know: a file that GRPC_XDS_BOOTSTRAP names.
type Bootstrap struct {
	// Servers are addresses of xDS servers, host:port or unix:path. The first that
	// answers is used.
	Servers []string
	// Node is who the client is.
	Node string
	registry.Locality
	// Network is that of the client; nil: that of the server.
	Network *string
	// TLS connects with TLS, trusting CA's authorities or, if that is empty, the
	// system's, and showing the certificate Cert with its Key if there is one. The
	// client reads the files again when they change.
	TLS           bool
	CA, Cert, Key string
}

type bootstrapFile struct {
	Servers []bootstrapServer `json:"xds_servers"`
	Node    bootstrapNode     `json:"node"`
}

type bootstrapServer struct {
	URI string `json:"server_uri"`
	// Credentials are tried in order; a client takes the first that it knows.
	Credentials []bootstrapCredentials `json:"channel_creds"`
	Features    []string               `json:"server_features"`
}

type bootstrapCredentials struct {
	Type   string        `json:"type"`
	Config *bootstrapTLS `json:"config,omitempty"`
}

type bootstrapTLS struct {
	CA   string `json:"ca_certificate_file,omitempty"`
	Cert string `json:"certificate_file,omitempty"`
	Key  string `json:"private_key_file,omitempty"`
}

type bootstrapNode struct {
	ID       string             `json:"id"`
	Locality bootstrapLocality  `json:"locality"`
	Metadata *bootstrapMetadata `json:"metadata,omitempty"`
}

type bootstrapLocality struct {
	Region string `json:"region,omitempty"`
	Zone   string `json:"zone,omitempty"`
}

type bootstrapMetadata struct {
	Network string `json:"network"`
}

// features tell a client about the server. The second makes it keep what it has
// when a name is not served any more: a service that lost all of its endpoints is
// told by an empty assignment, never by absence.
var features = []string{"xds_v3", "ignore_resource_deletion"}

// JSON returns the file's content.
func (b Bootstrap) JSON() ([]byte, error) {
	if err := b.validate(); err != nil {
		return nil, err
	}
	f := bootstrapFile{Node: bootstrapNode{ID: b.Node, Locality: bootstrapLocality(b.Locality)}}
	if b.Network != nil {
		f.Node.Metadata = &bootstrapMetadata{Network: *b.Network}
	}
	for _, address := range b.Servers {
		f.Servers = append(f.Servers, bootstrapServer{URI: address, Credentials: []bootstrapCredentials{b.credentials()}, Features: features})
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	return append(text, '\n'), nil
}

func (b Bootstrap) credentials() bootstrapCredentials {
	if !b.TLS {
		return bootstrapCredentials{Type: "insecure"}
	}
	return bootstrapCredentials{Type: "tls", Config: &bootstrapTLS{CA: b.CA, Cert: b.Cert, Key: b.Key}}
}

func (b Bootstrap) validate() error {
	switch {
	case len(b.Servers) == 0:
		return registry.Invalidf("servers", "are missing: name an xDS server at least")
	case b.Node == "":
		return registry.Invalidf("node", "is empty: say who the client is")
	case (b.Cert == "") != (b.Key == ""):
		return registry.Invalidf("certificate", "and key go together: give both")
	case !b.TLS && (b.CA != "" || b.Cert != ""):
		return registry.Invalidf("tls", "is off, and files for it are given")
	}
	if err := b.validatePlace(); err != nil {
		return err
	}
	for _, file := range []string{b.CA, b.Cert, b.Key} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return registry.Invalidf("tls", "%w", err)
		}
	}
	return nil
}

// validatePlace refuses a place that no endpoint can be in: its client would take
// every endpoint for one that is far away.
func (b Bootstrap) validatePlace() error {
	var errs []error
	if b.Region != "" {
		errs = append(errs, registry.ValidateRegion(b.Region))
	}
	if b.Zone != "" {
		errs = append(errs, registry.ValidateZone(b.Zone))
	}
	if b.Network != nil && *b.Network != "" {
		errs = append(errs, registry.ValidateNetwork(*b.Network))
	}
	return errors.Join(errs...)
}

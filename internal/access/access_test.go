package access_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"slices"
	"testing"

	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/registry"
)

func policy(t *testing.T) *access.Policy {
	t.Helper()
	p, err := access.NewPolicy([]access.Rule{
		{Role: access.Reader, Identities: []string{"cn:reader", "spiffe://example.org/*"}},
		{Role: access.Writer, Identities: []string{"dns:*.deploy.example.org"}},
		{Role: access.Admin, Identities: []string{"cn:ops"}},
		{Role: access.Node, Identities: []string{"spiffe://example.org/*/node/{node}", "dns:{node}.nodes.example.org"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDecide(t *testing.T) {
	p := policy(t)
	read, probe, admin := access.Action{Need: access.Read}, access.Action{Need: access.Probe}, access.Action{Need: access.Administer}
	write := func(nodes ...string) access.Action { return access.Action{Need: access.Write, Nodes: nodes} }
	tests := map[string]struct {
		name   string
		action access.Action
		denied bool
	}{
		"anonymous probes":                {action: probe},
		"anonymous reads":                 {action: read, denied: true},
		"nobody in particular reads":      {name: "cn:stranger", action: read, denied: true},
		"nobody in particular writes":     {name: "cn:stranger", action: write("n1"), denied: true},
		"reader reads":                    {name: "cn:reader", action: read},
		"reader writes":                   {name: "cn:reader", action: write("n1"), denied: true},
		"reader begins to write":          {name: "cn:reader", action: write(), denied: true},
		"a name of another kind":          {name: "dns:reader", action: read, denied: true},
		"more than the name":              {name: "cn:reader2", action: read, denied: true},
		"writer writes anything":          {name: "dns:a.deploy.example.org", action: write("n1", "")},
		"writer administers":              {name: "dns:a.deploy.example.org", action: admin, denied: true},
		"a dot is a dot":                  {name: "dns:a.deploy-example.org", action: write(), denied: true},
		"admin administers":               {name: "cn:ops", action: admin},
		"admin writes":                    {name: "cn:ops", action: write("n1", "")},
		"node reads":                      {name: "spiffe://example.org/c1/node/n1", action: read},
		"node writes its own":             {name: "spiffe://example.org/c1/node/n1", action: write("n1", "n1")},
		"node writes deeper":              {name: "spiffe://example.org/eu/c1/node/n1", action: write("n1")},
		"node without a path before":      {name: "spiffe://example.org/node/n1", action: write("n1")},
		"node writes another's":           {name: "spiffe://example.org/c1/node/n1", action: write("n1", "n2"), denied: true},
		"node writes nobody's":            {name: "spiffe://example.org/c1/node/n1", action: write(""), denied: true},
		"node begins to write":            {name: "spiffe://example.org/c1/node/n1", action: write()},
		"node administers":                {name: "spiffe://example.org/c1/node/n1", action: admin, denied: true},
		"below a node":                    {name: "spiffe://example.org/c1/node/n1/web", action: write("n1"), denied: true},
		"no node at all":                  {name: "spiffe://example.org/c1/xnode/n1", action: write("n1"), denied: true},
		"node of another trust domain":    {name: "spiffe://example.net/c1/node/n1", action: read, denied: true},
		"the trust domain as a path":      {name: "spiffe://example.net/spiffe://example.org/c1/node/n1", action: read, denied: true},
		"node by its DNS name":            {name: "dns:n1.nodes.example.org", action: write("n1")},
		"another node by its DNS name":    {name: "dns:n2.nodes.example.org", action: write("n1"), denied: true},
		"a node's name that has segments": {name: "dns:a/n1.nodes.example.org", action: write("a/n1"), denied: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var id access.Identity
			if tt.name != "" {
				id.Names = []string{tt.name}
			}
			err := p.Decide(id, tt.action)
			if (err != nil) != tt.denied || err != nil && registry.KindOf(err) != registry.Denied {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
}

func TestPolicyThatIsWrong(t *testing.T) {
	for name, rule := range map[string]access.Rule{
		"role":             {Role: "root", Identities: []string{"cn:x"}},
		"kind":             {Role: access.Reader, Identities: []string{"x"}},
		"every kind":       {Role: access.Reader, Identities: []string{"*:x"}},
		"node without one": {Role: access.Node, Identities: []string{"cn:x"}},
		"node of a reader": {Role: access.Reader, Identities: []string{"cn:{node}"}},
	} {
		if _, err := access.NewPolicy([]access.Rule{rule}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestIdentityOfACertificate(t *testing.T) {
	cert := &x509.Certificate{
		Subject: pkix.Name{CommonName: "web"}, DNSNames: []string{"web.example.org"},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/c1/node/n1"}},
	}
	id := access.Of(cert)
	if !slices.Equal(id.Names, []string{"spiffe://example.org/c1/node/n1", "dns:web.example.org", "cn:web"}) || id.String() != id.Names[0] {
		t.Errorf("identity %v", id)
	}
	if got := (access.Identity{}).String(); got != "anonymous" {
		t.Errorf("nobody is %q", got)
	}
}

package remote

import (
	"context"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

// Report is a node's full set of endpoints.
type Report struct {
	Node string
	// Endpoints that the node has; all others that it had are removed. Their
	// node is Node or empty.
	Endpoints []registry.Endpoint
	// Empty says that the node has nothing, and knows it: without it a report
	// that has no endpoints is Invalid while the registrar knows some.
	Empty bool
	// PresenceOnly says that the node lives and does not know what it has:
	// nothing changes but its presence.
	PresenceOnly bool
}

// Reported is what came of a report.
type Reported struct {
	registry.Outcome
	// PresenceTTL is how long the node is present; report again well within it.
	PresenceTTL time.Duration
	// Registrar is the address of the one that took the report.
	Registrar string
}

// Report makes what r's node has in the registrar's cluster equal to r, and keeps
// the node present. An endpoint that another node holds is told in Conflicts, by
// its index in r, and the others go through. A report that changes nothing writes
// nothing. Unavailable may be retried.
func (r *Registry) Report(ctx context.Context, report Report) (Reported, error) {
	if len(report.Endpoints) > maxCall {
		return Reported{}, tooMany(len(report.Endpoints))
	}
	req := &registryv1.ReportRequest{
		Node: report.Node, Empty: report.Empty, PresenceOnly: report.PresenceOnly,
		Endpoints: make([]*registryv1.Endpoint, len(report.Endpoints)),
	}
	for i, e := range report.Endpoints {
		if !e.IP.IsValid() {
			return Reported{}, noAddress(i)
		}
		req.Endpoints[i] = wire.ToProto(e)
	}
	var registrar peer.Peer
	answer, err := r.client.Report(ctx, req, grpc.Peer(&registrar))
	if err != nil {
		return Reported{}, refuse(ctx, "report", req, err)
	}
	out := Reported{PresenceTTL: answer.GetPresenceTtl().AsDuration()}
	if registrar.Addr != nil {
		out.Registrar = registrar.Addr.String()
	}
	out.Revision = registry.Revision(answer.GetRevision())
	out.Written, out.Removed = int(answer.GetWritten()), int(answer.GetRemoved())
	out.Conflicts = conflictsOf(report.Endpoints, answer.GetConflicts())
	return out, nil
}

// conflictsOf finds which endpoints the registrar's conflicts are about.
func conflictsOf(endpoints []registry.Endpoint, conflicts []*registryv1.Conflict) map[int]error {
	if len(conflicts) == 0 {
		return nil
	}
	messages := make(map[registry.Key]string, len(conflicts))
	for _, c := range conflicts {
		if k, err := wire.KeyFromProto(c.GetEndpoint()); err == nil {
			k.Origin = registry.Origin{}
			messages[k] = c.GetMessage()
		}
	}
	out := make(map[int]error, len(conflicts))
	for i, e := range endpoints {
		k := e.Key
		k.Origin, k.IP = registry.Origin{}, k.IP.Unmap()
		if m, ok := messages[k]; ok {
			out[i] = registry.Errorf(registry.Conflict, "%s", m)
		}
	}
	return out
}

// SetHealth changes the health of endpoints that exist, and nothing else of them;
// NotFound, with nothing of its batch changed, if one does not.
func (r *Registry) SetHealth(ctx context.Context, claims []registry.Claim, health registry.Health) (registry.Revision, error) {
	if len(claims) > maxCall {
		return "", tooMany(len(claims))
	}
	req := &registryv1.SetHealthRequest{Health: registryv1.Health(health), Endpoints: make([]*registryv1.Endpoint, len(claims))}
	for i, c := range claims {
		if !c.IP.IsValid() {
			return "", noAddress(i)
		}
		req.Endpoints[i] = wire.ClaimToProto(c)
	}
	answer, err := r.client.SetHealth(ctx, req)
	if err != nil {
		return "", refuse(ctx, "set health", req, err)
	}
	return registry.Revision(answer.GetRevision()), nil
}

// Sweep tells what the registrar's cluster would lose to its sweep, and why.
func (r *Registry) Sweep(ctx context.Context) (*registryv1.SweepResponse, error) {
	answer, err := r.client.Sweep(ctx, &registryv1.SweepRequest{DryRun: true})
	if err != nil {
		return nil, fail(ctx, "ask for the sweep", err)
	}
	return answer, nil
}

// AcceptSweep lets what is due pass the brake, once, if that is at most so many
// endpoints; if it is more by now, that is a Conflict, and nothing is removed. It
// takes an admin.
func (r *Registry) AcceptSweep(ctx context.Context, most uint32) (*registryv1.SweepResponse, error) {
	answer, err := r.client.Sweep(ctx, &registryv1.SweepRequest{Accept: most})
	if err != nil {
		return nil, fail(ctx, "accept the sweep", err)
	}
	return answer, nil
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// pollInterval is how often a condition that cannot be watched is looked at. It
// bounds the error of the times that are told.
const pollInterval = 20 * time.Millisecond

// region is a registrar with its embedded etcd and replicator, and a backend.
type region struct {
	name, executable, dir string
	etcd, grpc, http      string
	backendPort           uint16
	peers                 []*region
	leaseTTL              time.Duration

	registrar, backend *process
	client             *remote.Registry
}

func (r *region) origin() registry.Origin {
	return registry.Origin{Region: r.name, Cluster: r.name + "1"}
}

// endpoint is what the region registers: its IP is that of every other region.
func (r *region) endpoint() registry.Endpoint {
	return registry.Endpoint{
		Key: registry.Key{
			Origin: r.origin(), Service: service, Protocol: registry.HTTP,
			IP: netip.AddrFrom4([4]byte{127, 0, 0, 1}),
		},
		Ports: []registry.Port{{Name: "http", Number: r.backendPort}},
	}
}

// args are the words of the command that runs the registrar.
func (r *region) args() []string {
	o := r.origin()
	args := []string{
		"registrar", "--region", o.Region, "--cluster-name", o.Cluster,
		"--data-dir", filepath.Join(r.dir, "data"),
		"--embedded-etcd-client-url", "http://" + r.etcd,
		"--grpc-address", r.grpc, "--http-address", r.http,
		"--lease-ttl", r.leaseTTL.String(),
	}
	for _, p := range r.peers {
		args = append(args, "--peer-etcd", p.name+"="+p.etcd)
	}
	return args
}

func (r *region) startRegistrar() (err error) {
	r.registrar, err = startProcess("region "+r.name, r.executable, filepath.Join(r.dir, "registrar.log"), r.args()...)
	return err
}

func (r *region) startBackend() (err error) {
	r.backend, err = startProcess("backend "+r.name, r.executable, filepath.Join(r.dir, "backend.log"),
		"demo-backend", "--listen", loopback(r.backendPort), "--region", r.name)
	return err
}

// start starts both processes and waits until they serve.
func (r *region) start(ctx context.Context) error {
	if err := errors.Join(r.startRegistrar(), r.startBackend()); err != nil {
		return err
	}
	if err := r.ready(ctx); err != nil {
		return err
	}
	if r.client != nil {
		return nil
	}
	var err error
	r.client, err = remote.New(r.grpc)
	return err
}

func (r *region) ready(ctx context.Context) error {
	err := await(ctx, func() (bool, error) {
		for _, p := range []*process{r.registrar, r.backend} {
			if p.ended() {
				return false, p.failure()
			}
		}
		return answers(ctx, "http://"+r.http+"/readyz") && answers(ctx, "http://"+loopback(r.backendPort)), nil
	})
	if err != nil {
		return fmt.Errorf("wait for region %s: %w", r.name, err)
	}
	return nil
}

// kill ends both processes as a power cut would.
func (r *region) kill() {
	r.registrar.kill()
	r.backend.kill()
}

func (r *region) stop() {
	if r.client != nil {
		_ = r.client.Close() // nothing is asked of it any more
	}
	r.backend.stop()
	r.registrar.stop()
}

// awaitEndpoints waits until what r's registrar serves of the service meets cond,
// by its own watch.
func (r *region) awaitEndpoints(ctx context.Context, cond func(map[registry.Key]registry.Endpoint) bool) error {
	err := follow(ctx, r.client, func(now map[registry.Key]registry.Endpoint) error {
		if cond(now) {
			return errDone
		}
		return nil
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return fmt.Errorf("watch %s in region %s: %w", service, r.name, err)
}

// awaitLive waits until r shows every peer's mirror as live.
func (r *region) awaitLive(ctx context.Context) error {
	return await(ctx, func() (bool, error) {
		if r.registrar.ended() {
			return false, r.registrar.failure()
		}
		regions, err := r.client.Regions(ctx)
		if err != nil {
			return false, nil // not yet
		}
		live := 0
		for _, x := range regions {
			if x.State == "live" {
				live++
			}
		}
		return live == len(r.peers), nil
	})
}

var errDone = errors.New("done")

// follow calls fn with all endpoints of the service whenever they change, until
// fn or ctx ends it. A watch that breaks off is begun again: what was told stays
// until a new snapshot replaces it.
func follow(ctx context.Context, reg registry.Registry, fn func(map[registry.Key]registry.Endpoint) error) error {
	for {
		next := map[registry.Key]registry.Endpoint{}
		synced := false
		err := reg.Watch(ctx, registry.Query{Services: []string{service}}, func(e registry.Event) error {
			switch e.Kind {
			case registry.Reset:
				next, synced = map[registry.Key]registry.Endpoint{}, false
			case registry.Put:
				next[e.Endpoint.Key] = e.Endpoint
			case registry.Delete:
				delete(next, e.Endpoint.Key)
			case registry.Synced:
				synced = true
			}
			if !synced {
				return nil
			}
			return fn(next)
		})
		switch registry.KindOf(err) {
		case registry.Unavailable, registry.SlowReader:
			if err := pause(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// await looks at cond now and then until it holds, fails, or ctx ends.
func await(ctx context.Context, cond func() (bool, error)) error {
	for {
		if ok, err := cond(); ok || err != nil {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context) error {
	t := time.NewTimer(pollInterval)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status was wanted
	return resp.StatusCode == http.StatusOK
}

package serving

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
	"google.golang.org/grpc"
)

// Readable is what is read.
type Readable struct {
	View *view.View
	// Ready returns nil once the view is worth reading, until then the error that
	// readers get.
	Ready func() error
	// Loaded, if it is not nil, is closed once Ready returns nil: a Watch that comes
	// before is kept for a while.
	Loaded <-chan struct{}
	// Ages tells how long ago each region was proven alive.
	Ages func() map[string]time.Duration
	// Regions tells of every region.
	Regions func() *registryv1.ListRegionsResponse
	// Open, if it is not nil, counts an event stream of the one who asks, which
	// done ends, or refuses it.
	Open func(context.Context) (done func(), err error)
	// Mark, if it is not nil, adds to the header of answers.
	Mark func(http.Header)
	// Stopping is what ends streams at an orderly stop.
	Stopping error
}

// Reads are the methods of RegistryService that read, and their HTTP paths.
type Reads struct {
	Readable
	stopped context.Context
	stop    context.CancelFunc
	// streams are the goroutines of streams; they end soon after their streams.
	streams sync.WaitGroup
}

// NewReads returns the reads of r.
func NewReads(r Readable) *Reads {
	if r.Open == nil {
		r.Open = func(context.Context) (func(), error) { return func() {}, nil }
	}
	if r.Mark == nil {
		r.Mark = func(http.Header) {}
	}
	reads := &Reads{Readable: r}
	reads.stopped, reads.stop = context.WithCancel(context.Background())
	return reads
}

// Stop ends the streams, those to come too.
func (r *Reads) Stop() { r.stop() }

// Stopped ends when Stop is called.
func (r *Reads) Stopped() context.Context { return r.stopped }

// Wait waits for what streams have started, once the servers have ended.
func (r *Reads) Wait() { r.streams.Wait() }

// query reads a query once there is something to ask.
func (r *Reads) query(services []string) (registry.Query, error) {
	if err := r.Ready(); err != nil {
		return registry.Query{}, err
	}
	return QueryOf(services)
}

// list is List, not encoded.
func (r *Reads) list(services []string) (*registryv1.ListResponse, error) {
	q, err := r.query(services)
	if err != nil {
		return nil, err
	}
	return r.View.Snapshot(q).List(r.Ages()), nil
}

// List implements registryv1.RegistryServiceServer, as do the methods below.
func (r *Reads) List(_ context.Context, req *registryv1.ListRequest) (*registryv1.ListResponse, error) {
	if len(req.GetServices()) == 0 {
		return r.list(nil)
	}
	q, err := r.query(req.GetServices())
	if err != nil {
		return nil, err
	}
	return r.View.Encoded(r.View.Snapshot(q), r.Ages())
}

// ListServices tells of every service.
func (r *Reads) ListServices(context.Context, *registryv1.ListServicesRequest) (*registryv1.ListServicesResponse, error) {
	if err := r.Ready(); err != nil {
		return nil, err
	}
	return r.View.Snapshot(registry.Query{}).Summary(), nil
}

// ListRegions tells of every region.
func (r *Reads) ListRegions(context.Context, *registryv1.ListRegionsRequest) (*registryv1.ListRegionsResponse, error) {
	if err := r.Ready(); err != nil {
		return nil, err
	}
	return r.Regions(), nil
}

// watchStream is the stream of a Watch.
type watchStream = grpc.BidiStreamingServer[registryv1.WatchRequest, registryv1.WatchResponse]

// Watch ends when the client does, when the client is too slow, and at Stop. A
// send that is blocked must not keep it: so each delivery is sent beside it, by a
// goroutine that an idle stream does not have, and that ends with the stream's
// context, which ends after the return.
func (r *Reads) Watch(stream watchStream) error {
	sub, err := r.open(stream)
	if err != nil {
		return err
	}
	defer sub.Close()
	ended, sent := make(chan error, 1), make(chan error, 1)
	r.streams.Go(func() {
		if err := receive(stream, sub); err != nil {
			ended <- err
		}
	})
	waiting := sub.Waiting()
	for {
		select {
		case err := <-ended:
			return err
		case <-sub.CutOff():
			return view.ErrCutOff
		case <-r.stopped.Done():
			return r.Stopping
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-waiting:
			if d, ok := sub.Take(); ok {
				waiting = nil
				r.streams.Go(func() { sent <- send(stream, d) })
			}
		case err := <-sent:
			if err != nil {
				return err
			}
			waiting = sub.Waiting()
		}
	}
}

// open reads the first request of a stream.
func (r *Reads) open(stream watchStream) (*view.Subscription, error) {
	req, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := r.load(stream.Context()); err != nil {
		return nil, err
	}
	q, err := r.query(req.GetServices())
	if err != nil {
		return nil, err
	}
	h, err := view.HeldOf(req.GetHeld())
	if err != nil {
		return nil, err
	}
	r.View.Reach(stream.Context(), h)
	return r.View.Subscribe(q, h), nil
}

// loadWait is how long a watch that comes early is kept until there is something to
// read: it would come again and again otherwise, with all others.
const loadWait = 5 * time.Second

// load waits until r is loaded, for loadWait at most.
func (r *Reads) load(ctx context.Context) error {
	if r.Loaded == nil {
		return nil
	}
	late := time.NewTimer(loadWait)
	defer late.Stop()
	select {
	case <-r.Loaded:
	case <-late.C:
	case <-r.stopped.Done():
		return r.Stopping
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// receive takes changes of the query until the client has no more, which is not
// the end of the stream.
func receive(stream watchStream, sub *view.Subscription) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		q, err := QueryOf(req.GetServices())
		if err != nil {
			return err
		}
		sub.Requery(q, req.GetHeld() != nil)
	}
}

func send(stream watchStream, d view.Delivery) error {
	for m := range d.Messages() {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

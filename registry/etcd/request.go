package etcd

import (
	"context"
	"maps"
	"math"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/aether-federation/aether/registry"
)

// request returns the transaction of steps, each guarded by the revision that was
// read, and the nodes whose absence it compares too. The message is made here, in a
// few allocations for all steps, because that is a good part of what a registration
// costs: etcd's client takes a dozen for each.
func request(own registry.Origin, steps []step) (req *etcdserverpb.TxnRequest, absent []string) {
	req = &etcdserverpb.TxnRequest{
		Compare: make([]*etcdserverpb.Compare, 0, len(steps)),
		Success: make([]*etcdserverpb.RequestOp, 0, len(steps)),
	}
	parts := make([]parts, len(steps))
	keys := newKeys(steps)
	var nodes map[string]bool
	for i := range steps {
		s := &steps[i]
		key := keys.next(s.key)
		req.Compare = append(req.Compare, parts[i].guard(key, s.modRevision))
		req.Success = append(req.Success, parts[i].op(key, s))
		if s.absent != "" {
			if nodes == nil {
				nodes = map[string]bool{}
			}
			nodes[s.absent] = true
		}
	}
	absent = slices.Sorted(maps.Keys(nodes))
	for _, n := range absent {
		c := isAbsent(own, n)
		req.Compare = append(req.Compare, c.GetCompare())
	}
	return req, absent
}

// parts are the messages that one step consists of.
type parts struct {
	compare etcdserverpb.Compare
	mod     etcdserverpb.Compare_ModRevision
	request etcdserverpb.RequestOp
	put     etcdserverpb.PutRequest
	isPut   etcdserverpb.RequestOp_RequestPut
}

// guard compares the revision of a key.
func (p *parts) guard(key []byte, modRevision int64) *etcdserverpb.Compare {
	p.mod.ModRevision = modRevision
	p.compare.Key, p.compare.Target, p.compare.TargetUnion = key, etcdserverpb.Compare_MOD, &p.mod
	p.compare.Result = etcdserverpb.Compare_EQUAL
	return &p.compare
}

// op is what s does to its key.
func (p *parts) op(key []byte, s *step) *etcdserverpb.RequestOp {
	if s.removes() {
		p.request.Request = &etcdserverpb.RequestOp_RequestDeleteRange{RequestDeleteRange: &etcdserverpb.DeleteRangeRequest{Key: key}}
		return &p.request
	}
	p.put.Key, p.put.Value = key, s.value
	if p.put.IgnoreLease = s.change != nil; !p.put.IgnoreLease {
		p.put.Lease = int64(s.lease)
	}
	p.isPut.RequestPut = &p.put
	p.request.Request = &p.isPut
	return &p.request
}

// keys copies keys into one piece of memory.
type keys []byte

func newKeys(steps []step) keys {
	n := 0
	for i := range steps {
		n += len(steps[i].key)
	}
	return make(keys, 0, n)
}

func (k *keys) next(key string) []byte {
	at := len(*k)
	*k = append(*k, key...)
	return (*k)[at:len(*k):len(*k)]
}

// callOptions are those that etcd's client gives its own calls.
var callOptions = []grpc.CallOption{grpc.WaitForReady(true), grpc.MaxCallSendMsgSize(2 << 20), grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// send commits a transaction.
func (s *Store) send(ctx context.Context, req *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	resp, err := s.kv.Txn(ctx, req, callOptions...)
	return resp, clientv3.ContextError(ctx, err)
}

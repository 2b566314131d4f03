package etcd

import (
	"context"
	"time"
)

// TimeToLive is the function of that name for a lease in the feed's etcd.
func (f *Feed) TimeToLive(ctx context.Context, leaseID int64) (left, granted time.Duration, err error) {
	return TimeToLive(ctx, f.client, leaseID)
}

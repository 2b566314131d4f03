// Package view holds endpoints in memory for many readers: the registrar's merged
// view of all regions, and the agent's of what its registrars say.
//
// Whoever owns a [View] decides what is in it and publishes changes; the view
// gives them versions, tells those subscribers whom they concern, a burst at once,
// lets a reader resume by digests of what it holds, and keeps what it has encoded.
// No reader delays another: what waits for one is shared and bounded, and who is
// too far behind is cut off and reads again.
package view

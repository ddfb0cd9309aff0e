package xds

// Health is the health of a workload, which is reported with HealthType. The zero value says that nothing is known, which is
// not reported.
type Health struct {
	Known bool
	// Reason is why the workload is unhealthy; "" for a healthy one.
	Reason string
}

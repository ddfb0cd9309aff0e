package deploy

// alertCase is a state of agents, and what an alert says of it.
type alertCase struct {
	alert string
	at    string
	// series are in promtool's notation, one value a minute. POD stands for the labels
	// of a pod.
	series []string
	// labels are those of the alert that fires, besides its severity; _ stands for a space.
	labels string
	// summary is that of the alert that fires; empty if it does not.
	summary string
}

var alertCases = []alertCase{
	{"HoldfastUpstreamDown", "10m", []string{
		`holdfast_upstream_connected{POD,upstream="a:1"} 1 0x20`, `holdfast_upstream_connected{POD,upstream="b:1"} 0x20`, `holdfast_groups{POD} 1x20`,
	}, "POD", "No control plane is connected to web-1; Envoy is served the last known good"},
	{"HoldfastUpstreamDown", "10m", []string{ // on a machine, which has no pod
		`holdfast_upstream_connected{instance="vm1:15020",upstream="a:1"} 0x20`, `holdfast_groups{instance="vm1:15020"} 1x20`,
	}, "instance=vm1:15020", "No control plane is connected to vm1:15020; Envoy is served the last known good"},
	{"HoldfastUpstreamDown", "10m", []string{ // the second is connected
		`holdfast_upstream_connected{POD,upstream="a:1"} 0x20`, `holdfast_upstream_connected{POD,upstream="b:1"} 1x20`, `holdfast_groups{POD} 1x20`,
	}, "", ""},
	{"HoldfastUpstreamDown", "10m", []string{ // no client, so no connection is needed
		`holdfast_upstream_connected{POD,upstream="a:1"} 0x20`, `holdfast_groups{POD} 0x20`,
	}, "", ""},
	{"HoldfastUpstreamDown", "4m", []string{ // a control plane that restarts
		`holdfast_upstream_connected{POD,upstream="a:1"} 0x20`, `holdfast_groups{POD} 1x20`,
	}, "", ""},

	{"HoldfastFleetDisconnected", "10m", []string{
		`holdfast_upstream_connected{pod="a",upstream="u"} 0x20`, `holdfast_upstream_connected{pod="b",upstream="u"} 1x20`,
	}, "", "Only 50% of the agents are connected to a control plane"},
	{"HoldfastFleetDisconnected", "10m", []string{
		`holdfast_upstream_connected{pod="a",upstream="u"} 0x20`, `holdfast_upstream_connected{pod="a",upstream="v"} 1x20`, `holdfast_upstream_connected{pod="b",upstream="u"} 1x20`,
	}, "", ""},

	{"HoldfastNeverConnected", "10m", []string{
		`holdfast_upstream_connects_total{POD,upstream="a:1"} 0x20`, `holdfast_upstream_connected{POD,upstream="a:1"} 0x20`, `holdfast_groups{POD} 1x20`,
	}, "POD", "web-1 has had no control plane since it started"},
	{"HoldfastNeverConnected", "10m", []string{ // it had one, and lost it
		`holdfast_upstream_connects_total{POD,upstream="a:1"} 1x20`, `holdfast_upstream_connected{POD,upstream="a:1"} 0x20`, `holdfast_groups{POD} 1x20`,
	}, "", ""},

	{"HoldfastUpstreamRejectsAgent", "15m", []string{
		`holdfast_upstream_failure_reasons_total{POD,upstream="a:1",reason="tls"} 0+1x20`, `holdfast_upstream_failure_reasons_total{POD,upstream="a:1",reason="unreachable"} 0x20`,
	}, "POD reason=tls", "The control plane and web-1 do not trust each other (tls)"},
	{"HoldfastUpstreamRejectsAgent", "15m", []string{
		`holdfast_upstream_failure_reasons_total{POD,upstream="a:1",reason="tls"} 2x20`, `holdfast_upstream_failure_reasons_total{POD,upstream="a:1",reason="unreachable"} 0+1x20`,
	}, "", ""},

	{"HoldfastUpstreamSilent", "10m", []string{`holdfast_upstream_stale{POD,upstream="a:1"} 1x20`}, "POD", "The control plane of web-1 is connected and sends nothing"},
	{"HoldfastUpstreamSilent", "10m", []string{`holdfast_upstream_stale{POD,upstream="a:1"} 0x20`}, "", ""},

	{"HoldfastConfigStale", "10m", []string{`holdfast_last_contact_age_seconds{POD} 7200x20`}, "POD", "web-1 last heard from a control plane 2h 0m 0s ago"},
	{"HoldfastConfigStale", "10m", []string{`holdfast_last_contact_age_seconds{POD} 3000x20`}, "", ""},

	{"HoldfastUpstreamCertificateExpiresSoon", "20m", []string{`holdfast_upstream_certificate_expiry_timestamp_seconds{POD} 8400x30`}, "POD",
		"The certificate of --upstream-cert in web-1 expires in 2h 0m 0s"},
	{"HoldfastUpstreamCertificateExpiresSoon", "20m", []string{`holdfast_upstream_certificate_expiry_timestamp_seconds{POD} 1000000x30`}, "", ""},

	{"HoldfastResourcesRejected", "5m", []string{
		`holdfast_resources{POD,type="CDS",standing="accepted"} 9x20`, `holdfast_resources{POD,type="CDS",standing="rejected"} 1x20`, `holdfast_resources{POD,type="CDS",standing="suspect"} 2x20`,
	}, "POD type=CDS", "Envoy NACKs 3 CDS in web-1; it keeps the last accepted version"},
	{"HoldfastResourcesRejected", "5m", []string{
		`holdfast_resources{POD,type="CDS",standing="accepted"} 9x20`, `holdfast_resources{POD,type="CDS",standing="rejected"} 0x20`, `holdfast_resources{POD,type="CDS",standing="pending"} 2x20`,
	}, "", ""},

	{"HoldfastNackBurst", "10m", []string{
		`holdfast_resources{pod="a",type="LDS",standing="rejected"} 0 0 1x20`, `holdfast_resources{pod="b",type="LDS",standing="rejected"} 0 0 2x20`,
		`holdfast_resources{pod="c",type="LDS",standing="rejected"} 0 0 1x20`, `holdfast_resources{pod="d",type="LDS",standing="rejected"} 0 0 1x20`,
		`holdfast_resources{pod="e",type="LDS",standing="rejected"} 0 0 1x20`, `holdfast_resources{pod="f",type="LDS",standing="rejected"} 0 0 1x20`,
	}, "type=LDS", "The Envoys of 6 agents began to NACK LDS in the last ten minutes"},
	{"HoldfastNackBurst", "15m", []string{ // one that is offered it again (design.md I7), and some that have not taken it for long
		`holdfast_resources{pod="a",type="LDS",standing="rejected"} 0x8 1x20`, `holdfast_answers_total{pod="a",type="LDS",form="delta",result="nack"} 0x8 9x20`,
		`holdfast_resources{pod="b",type="LDS",standing="rejected"} 1x20`, `holdfast_resources{pod="c",type="LDS",standing="rejected"} 1x20`,
		`holdfast_resources{pod="d",type="LDS",standing="rejected"} 1x20`, `holdfast_resources{pod="e",type="LDS",standing="rejected"} 1x20`,
		`holdfast_resources{pod="f",type="LDS",standing="rejected"} 1x20`,
	}, "", ""},

	{"HoldfastResourcesMissing", "15m", []string{`holdfast_resource_errors{POD,type="EDS"} 2x20`}, "POD type=EDS",
		"The control plane does not provide 2 EDS that the Envoy of web-1 asks for"},
	{"HoldfastResourcesMissing", "15m", []string{`holdfast_resource_errors{POD,type="EDS"} 0x20`}, "", ""},

	{"HoldfastRemovalsHeldBack", "15m", []string{ // one alert for two pods, each with two types
		`holdfast_withheld_removals{pod="a",type="CDS"} 40x20`, `holdfast_withheld_removals{pod="a",type="EDS"} 4x20`, `holdfast_withheld_removals{pod="b",type="CDS"} 40x20`,
		`holdfast_withheld_removals{pod="c",type="CDS"} 0x20`,
		`holdfast_upstream_active{pod="a",upstream="u:1"} 1x20`, `holdfast_upstream_active{pod="a",upstream="v:1"} 0x20`, `holdfast_upstream_active{pod="b",upstream="u:1"} 1x20`,
		`holdfast_upstream_active{pod="c",upstream="u:1"} 1x20`,
	}, "upstream=u:1", "The control plane u:1 removed or emptied what 2 agents have, and has not confirmed that; they keep it"},
	{"HoldfastRemovalsHeldBack", "15m", []string{ // it removes everything again and again
		`holdfast_withheld_removals{POD,type="CDS"} 40 0 40 0 40 0 40 0 40 0 40 0 40 0 40 0 40 0`, `holdfast_upstream_active{POD,upstream="u:1"} 1x20`,
	}, "upstream=u:1", "The control plane u:1 removed or emptied what 1 agents have, and has not confirmed that; they keep it"},
	{"HoldfastRemovalsHeldBack", "6m", []string{ // it confirms it after a minute
		`holdfast_withheld_removals{POD,type="CDS"} 0 40 40 0x20`, `holdfast_upstream_active{POD,upstream="u:1"} 1x20`,
	}, "", ""},

	{"HoldfastUpdatesSlow", "20m", []string{
		`holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="10"} 0x30`, `holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="30"} 0+1x30`,
		`holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="+Inf"} 0+1x30`, `holdfast_push_latency_seconds_count{pod="a",type="CDS"} 0+1x30`,
	}, "type=CDS", "A tenth of the CDS updates take longer than 28s until Envoy ACKs them"},
	{"HoldfastUpdatesSlow", "20m", []string{ // one update alone says nothing
		`holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="10"} 0x30`, `holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="30"} 0x12 1x17`,
		`holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="+Inf"} 0x12 1x17`, `holdfast_push_latency_seconds_count{pod="a",type="CDS"} 0x12 1x17`,
	}, "", ""},
	{"HoldfastUpdatesSlow", "20m", []string{
		`holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="10"} 0+5x30`, `holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="30"} 0+5x30`,
		`holdfast_push_latency_seconds_bucket{pod="a",type="CDS",le="+Inf"} 0+5x30`, `holdfast_push_latency_seconds_count{pod="a",type="CDS"} 0+5x30`,
	}, "", ""},

	{"HoldfastFrozenTooLong", "1m", []string{`holdfast_frozen_overdue{POD} 1x5`}, "POD", "web-1 is frozen for longer than was intended"},
	{"HoldfastFrozenTooLong", "1m", []string{`holdfast_frozen_overdue{POD} 0x5`, `holdfast_frozen{POD} 1x5`}, "", ""},

	{"HoldfastStateNotDurable", "10m", []string{`holdfast_state_durable{POD} 0x20`}, "POD", "The last known good of web-1 is in memory only"},
	{"HoldfastStateNotDurable", "10m", []string{`holdfast_state_durable{POD} 1x20`}, "", ""},

	{"HoldfastStateDamaged", "1m", []string{`holdfast_state_damaged{POD} 1x5`}, "POD", "Records of the state of web-1 were damaged when it started"},
	{"HoldfastStateDamaged", "1m", []string{`holdfast_state_damaged{POD} 0x5`}, "", ""},

	{"HoldfastStateSkipsRecords", "70m", []string{`holdfast_state_skipped_records_total{POD,reason="too large"} 0x59 1x20`}, "POD reason=too_large",
		"Resources are not in the last known good of web-1: too large"},
	{"HoldfastStateSkipsRecords", "70m", []string{`holdfast_state_skipped_records_total{POD,reason="too large"} 3x80`}, "", ""},

	{"HoldfastRehearsalFoundLosses", "1m", []string{`holdfast_rehearsal_losses{POD,kind="live"} 2x5`}, "POD kind=live",
		"web-1 would lose 2 things without its control plane (live)"},
	{"HoldfastRehearsalFoundLosses", "1m", []string{`holdfast_rehearsal_losses{POD,kind="live"} 0x5`}, "", ""},

	{"HoldfastSeedUsed", "10m", []string{`holdfast_seed_used{POD} 1x20`}, "POD", "web-1 runs from a seed: it has never had a control plane"},
	{"HoldfastSeedUsed", "10m", []string{`holdfast_seed_used{POD} 1 1 1 0x20`}, "", ""},

	{"HoldfastSeedMissing", "3m", []string{`holdfast_seed_failed{POD} 1x20`}, "POD", "web-1 has no control plane, nothing stored, and no seed that it can use"},
	{"HoldfastSeedMissing", "3m", []string{`holdfast_seed_failed{POD} 0x20`}, "", ""},

	{"HoldfastSeedNotPublished", "70m", []string{`holdfast_seed_publish_errors_total{POD} 0+1x80`}, "POD", "web-1 cannot publish a seed"},
	{"HoldfastSeedNotPublished", "70m", []string{`holdfast_seed_publish_errors_total{POD} 0x50 1x30`}, "", ""},

	{"HoldfastSeedOld", "30h", []string{`holdfast_seed_published_timestamp_seconds{namespace="shop",pod="web-1"} 3600x1900`, `holdfast_seed_published_timestamp_seconds{namespace="shop",pod="web-2"} 0x1900`}, "namespace=shop",
		"The newest seed is 1d 5h 0m 0s old"},
	{"HoldfastSeedOld", "30h", []string{`holdfast_seed_published_timestamp_seconds{namespace="shop",pod="web-1"} 100000x1900`, `holdfast_seed_published_timestamp_seconds{namespace="shop",pod="web-2"} 0x1900`}, "", ""},

	{"HoldfastFallenBack", "1m", []string{`holdfast_fallen_back{POD} 1x5`}, "POD", "Envoy crashed repeatedly with a new configuration in web-1; the one before it is served"},
	{"HoldfastFallenBack", "1m", []string{`holdfast_fallen_back{POD} 0x5`}, "", ""},

	{"HoldfastEnvoyCrashes", "20m", []string{`holdfast_envoy_crashes_total{POD} 0x10 1 2 3 3x10`, `holdfast_envoy_short_lives_total{POD} 0x30`}, "POD", "The Envoy of web-1 crashed 3 times in 15 minutes"},
	{"HoldfastEnvoyCrashes", "20m", []string{`holdfast_envoy_crashes_total{POD} 0x30`, `holdfast_envoy_short_lives_total{POD} 0x10 1 2 3 4x10`}, "POD", "The Envoy of web-1 crashed 4 times in 15 minutes"},
	{"HoldfastEnvoyCrashes", "20m", []string{`holdfast_envoy_crashes_total{POD} 0x10 1x20`, `holdfast_envoy_short_lives_total{POD} 9x30`}, "", ""},

	{"HoldfastEnvoyDetached", "15m", []string{`holdfast_streams{POD,form="delta"} 0x20`, `holdfast_streams{POD,form="sotw"} 0x20`}, "POD", "No Envoy is connected to web-1"},
	{"HoldfastEnvoyDetached", "15m", []string{ // a shadow, which serves nobody
		`holdfast_streams{POD,form="delta"} 0x20`, `holdfast_streams{POD,form="sotw"} 0x20`, `holdfast_shadow_comparisons_total{POD,result="success"} 0+6x20`, `holdfast_shadow_comparisons_total{POD,result="failure"} 0x20`,
	}, "", ""},
	{"HoldfastEnvoyDetached", "15m", []string{`holdfast_streams{POD,form="delta"} 1x20`, `holdfast_streams{POD,form="sotw"} 0x20`}, "", ""},

	{"HoldfastClientRejected", "10m", []string{`holdfast_socket_refused_total{POD} 0x4 2x20`, `holdfast_refused_total{POD,limit="streams"} 0x20`}, "POD", "web-1 rejects a client, or parts of its requests"},
	{"HoldfastClientRejected", "10m", []string{`holdfast_socket_refused_total{POD} 0x20`, `holdfast_refused_total{POD,limit="streams"} 0x4 7x20`}, "POD", "web-1 rejects a client, or parts of its requests"},
	{"HoldfastClientRejected", "10m", []string{`holdfast_socket_refused_total{POD} 3x20`, `holdfast_refused_total{POD,limit="streams"} 7x20`}, "", ""},

	{"HoldfastCertificateExpiresSoon", "10m", []string{
		`holdfast_certificate_expiry_timestamp_seconds{POD,secret="default",ca="istio"} 2400x20`, `holdfast_certificate_failing_attempts{POD,secret="default",ca="istio"} 5x20`,
	}, "POD secret=default ca=istio", "The certificate default from istio in web-1 expires in 30m 0s and cannot be renewed"},
	{"HoldfastCertificateExpiresSoon", "10m", []string{ // short-lived by intention
		`holdfast_certificate_expiry_timestamp_seconds{POD,secret="default",ca="istio"} 2400x20`, `holdfast_certificate_failing_attempts{POD,secret="default",ca="istio"} 0x20`,
	}, "", ""},

	{"HoldfastCertificateInvalid", "3m", []string{`holdfast_certificate_valid{POD,secret="default",ca="istio"} 0x20`}, "POD secret=default ca=istio", "web-1 has no valid certificate default"},
	{"HoldfastCertificateInvalid", "3m", []string{`holdfast_certificate_valid{POD,secret="default",ca="istio"} 0 1x20`}, "", ""},

	{"HoldfastCertificateFaults", "10m", []string{`holdfast_certificate_faults{POD} 1x20`}, "POD", "1 problems with the certificates or files of web-1"},
	{"HoldfastCertificateFaults", "10m", []string{`holdfast_certificate_faults{POD} 0x20`}, "", ""},

	{"HoldfastAgentDown", "10m", []string{`up{POD,job="monitoring/holdfast"} 0x20`, `up{POD,job="node"} 0x20`}, "POD job=monitoring/holdfast", "web-1 does not answer"},
	{"HoldfastAgentDown", "10m", []string{`up{POD,job="holdfast"} 1x20`, `up{POD,job="node"} 0x20`}, "", ""},

	{"HoldfastAgentRestarts", "70m", []string{`process_start_time_seconds{POD,job="holdfast"} 0+60x80`}, "POD job=holdfast", "The agent of web-1 restarted 60 times in an hour"},
	{"HoldfastAgentRestarts", "70m", []string{`process_start_time_seconds{POD,job="holdfast"} 0x50 1x30`, `process_start_time_seconds{POD,job="node"} 0+60x80`}, "", ""},

	{"HoldfastNotReady", "10m", []string{`holdfast_ready{POD,condition="resources"} 0x20`, `holdfast_ready{POD,condition="socket"} 1x20`}, "POD condition=resources", "web-1 is not ready: resources"},
	{"HoldfastNotReady", "10m", []string{`holdfast_ready{POD,condition="resources"} 0 0 1x20`}, "", ""},

	{"HoldfastEventsLost", "70m", []string{`holdfast_events_lost_total{POD} 0x59 4x20`}, "POD", "Events of web-1 are missing on disk"},
	{"HoldfastEventsLost", "70m", []string{`holdfast_events_lost_total{POD} 4x80`}, "", ""},

	{"HoldfastVersionSkew", "25h", []string{
		`holdfast_build_info{pod="a",version="v1"} 1x1600`, `holdfast_build_info{pod="b",version="v2"} 1x1600`, `holdfast_build_info{pod="c",version="v3"} 1x1600`,
	}, "", "3 versions of holdfast run at once"},
	{"HoldfastVersionSkew", "25h", []string{ // a roll-out
		`holdfast_build_info{pod="a",version="v1"} 1x1600`, `holdfast_build_info{pod="b",version="v2"} 1x1600`, `holdfast_build_info{pod="c",version="v2"} 1x1600`,
	}, "", ""},
}

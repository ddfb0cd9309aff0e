package deploy

// injectorAlertCases are states of injectors, and of the API server that calls them.
var injectorAlertCases = []alertCase{
	{"HoldfastInjectorDown", "10m", []string{`up{POD,job="monitoring/holdfast-injector"} 0x20`, `up{POD,job="monitoring/holdfast"} 0x20`}, "POD job=monitoring/holdfast-injector",
		"The injector web-1 does not answer"},
	{"HoldfastInjectorDown", "10m", []string{`up{POD,job="holdfast-injector"} 0 0 0 1x20`, `up{POD,job="holdfast"} 0x20`}, "", ""},

	{"HoldfastInjectorNotReady", "10m", []string{`holdfast_injector_ready{POD} 0x20`, `holdfast_injector_ready{namespace="shop",pod="web-2"} 1x20`}, "POD",
		"The injector web-1 has no certificate that the API server trusts"},
	{"HoldfastInjectorNotReady", "10m", []string{`holdfast_injector_ready{POD} 0 0 0 1x20`}, "", ""},

	{"HoldfastInjectorNoneReady", "5m", []string{`holdfast_injector_ready{POD} 0x20`, `holdfast_injector_ready{namespace="shop",pod="web-2"} 0x20`}, "namespace=shop",
		"No injector in shop is ready: pods are not created, or without sidecars"},
	{"HoldfastInjectorNoneReady", "5m", []string{`holdfast_injector_ready{POD} 0x20`, `holdfast_injector_ready{namespace="shop",pod="web-2"} 1x20`}, "", ""},

	{"HoldfastInjectorPodsRejected", "10m", []string{`holdfast_injector_reviews_total{POD,result="denied"} 0 0 2x20`, `holdfast_injector_reviews_total{POD,result="rejected"} 3x20`}, "POD result=denied",
		"web-1 could not inject 2 pods in ten minutes (denied)"},
	{"HoldfastInjectorPodsRejected", "10m", []string{`holdfast_injector_reviews_total{POD,result="rejected"} 3x20`, `holdfast_injector_reviews_total{POD,result="injected"} 0+5x20`}, "", ""},

	{"HoldfastInjectorInvalidRequests", "10m", []string{`holdfast_injector_reviews_total{POD,result="invalid"} 0+2x20`}, "POD result=invalid", "web-1 has got 20 requests in ten minutes that it could not answer"},
	{"HoldfastInjectorInvalidRequests", "10m", []string{`holdfast_injector_reviews_total{POD,result="invalid"} 0x8 3x20`}, "", ""}, // somebody's curl

	{"HoldfastInjectorSlow", "15m", []string{
		`holdfast_injector_review_duration_seconds_bucket{POD,le="1"} 0+90x20`, `holdfast_injector_review_duration_seconds_bucket{POD,le="2.5"} 0+100x20`, `holdfast_injector_review_duration_seconds_bucket{POD,le="+Inf"} 0+100x20`,
	}, "namespace=shop", "One of a hundred pods waits 2.35s and longer for the injector"},
	{"HoldfastInjectorSlow", "15m", []string{
		`holdfast_injector_review_duration_seconds_bucket{POD,le="0.5"} 0+100x20`, `holdfast_injector_review_duration_seconds_bucket{POD,le="1"} 0+100x20`, `holdfast_injector_review_duration_seconds_bucket{POD,le="+Inf"} 0+100x20`,
	}, "", ""},

	{"HoldfastInjectorSettingsInvalid", "10m", []string{`holdfast_injector_settings_valid{POD} 0x20`}, "POD", "The settings of web-1 are not valid; pods are injected with the ones before"},
	{"HoldfastInjectorSettingsInvalid", "10m", []string{`holdfast_injector_settings_valid{POD} 1 0 0 1x20`}, "", ""},

	{"HoldfastInjectorCertificateExpiresSoon", "10m", []string{`holdfast_injector_certificate_expiry_timestamp_seconds{POD} 11400x20`}, "POD",
		"The serving certificate of web-1 expires in 3h 0m 0s and was not renewed"},
	{"HoldfastInjectorCertificateExpiresSoon", "10m", []string{`holdfast_injector_certificate_expiry_timestamp_seconds{POD} 43200x20`}, "", ""}, // half of 24h
	{"HoldfastInjectorCertificateExpiresSoon", "10m", []string{`holdfast_injector_certificate_expiry_timestamp_seconds{POD} 0x20`}, "", ""},     // none yet

	{"HoldfastInjectorCAExpiresSoon", "70m", []string{`holdfast_injector_ca_expiry_timestamp_seconds{POD} 2596200x80`}, "POD",
		"The authority of web-1 expires in 30d 0h 0m 0s and was not replaced"},
	{"HoldfastInjectorCAExpiresSoon", "70m", []string{`holdfast_injector_ca_expiry_timestamp_seconds{POD} 10512000x80`}, "", ""}, // a third of a year
	{"HoldfastInjectorCAExpiresSoon", "70m", []string{`holdfast_injector_ca_expiry_timestamp_seconds{POD} 0x80`}, "", ""},

	{"HoldfastInjectorSyncFails", "20m", []string{`holdfast_injector_sync_failures_total{POD} 0+30x30`}, "POD", "web-1 cannot read or write its Secret or its webhook configuration"},
	{"HoldfastInjectorSyncFails", "20m", []string{`holdfast_injector_sync_failures_total{POD} 0 30 60 60x30`}, "", ""}, // the API server was away for two minutes
	{"HoldfastInjectorSyncFails", "20m", []string{`holdfast_injector_sync_failures_total{POD} 0x10 1x30`}, "", ""},     // another replica was faster

	{"HoldfastInjectorCABundleContested", "60m", []string{`holdfast_injector_ca_bundle_writes_total{POD} 0+1x80`}, "POD",
		"web-1 has written the caBundle 60 times in an hour: something else writes it, too"},
	{"HoldfastInjectorCABundleContested", "60m", []string{`holdfast_injector_ca_bundle_writes_total{POD} 0x10 1x20 2x20 3x40`}, "", ""}, // a replacement of the authority

	{"HoldfastInjectorCallsFail", "10m", []string{
		`apiserver_admission_webhook_rejection_count{instance="a",name="namespace.injector.holdfast.dev",error_type="calling_webhook_error",operation="CREATE"} 0 0 3x20`,
		`apiserver_admission_webhook_rejection_count{instance="b",name="namespace.injector.holdfast.dev",error_type="calling_webhook_error",operation="CREATE"} 0 0 1x20`,
	}, "name=namespace.injector.holdfast.dev", "4 pods were not created in ten minutes, because the API server could not call namespace.injector.holdfast.dev"},
	{"HoldfastInjectorCallsFail", "10m", []string{
		`apiserver_admission_webhook_rejection_count{instance="a",name="namespace.injector.holdfast.dev",error_type="no_error",operation="CREATE"} 0 0 3x20`, // --on-reject deny
		`apiserver_admission_webhook_rejection_count{instance="a",name="injector.others.dev",error_type="calling_webhook_error",operation="CREATE"} 0 0 3x20`,
	}, "", ""},

	{"HoldfastInjectorBypassed", "10m", []string{`apiserver_admission_webhook_fail_open_count{instance="a",name="pod.injector.holdfast.dev",type="admit"} 0 0 2x20`},
		"name=pod.injector.holdfast.dev", "2 pods were created without sidecars in ten minutes, because the API server could not call pod.injector.holdfast.dev"},
	{"HoldfastInjectorBypassed", "10m", []string{`apiserver_admission_webhook_fail_open_count{instance="a",name="injector.others.dev",type="admit"} 0 0 2x20`}, "", ""},
}

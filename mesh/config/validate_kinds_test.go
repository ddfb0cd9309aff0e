package config

import "testing"

func TestDestinationRulesAreValidated(t *testing.T) {
	validateRows(t, DestinationRule, []row{
		{"valid", "host: a\ntrafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}\nsubsets: [{name: v1, labels: {version: v1}}]\nexportTo: ['.']", nil},
		{"host", "host: ''", []string{`spec.host: "" is no host: it must not be empty`}},
		{"a numeric top level", "host: a.1", []string{`spec.host: "a.1" is no host: its last label must not be a number`}},
		{"an empty policy", "host: a\ntrafficPolicy: {}", []string{"spec.trafficPolicy: must not be empty"}},
		{"subsets", "host: a\nsubsets: [{name: v1}, {name: v1, labels: {a: 'b c'}}, {}]", []string{
			`spec.subsets[1].name: "v1" is the name of subsets[0] too`, `spec.subsets[1].labels.a: "b c" is no value of a label`,
			`spec.subsets[2].name: "" is no name of a subset: use letters, digits and '-', at most 63`}},
		{"a selector", "host: a\nworkloadSelector: {matchLabels: {a: '*'}}\nexportTo: [b]", []string{
			"spec.workloadSelector.a: labels are compared as they are: there are no wildcards",
			"spec.exportTo[0]: a rule with a workloadSelector is for its own namespace only"}},
		{"policies of ports", "host: a\ntrafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}, {port: {number: 80}}, {}]}", []string{
			"spec.trafficPolicy.portLevelSettings[1].port.number: warning: portLevelSettings[0] is for the same port, and is used for it [HM0103]",
			"spec.trafficPolicy.portLevelSettings[1]: must have a loadBalancer, connectionPool, outlierDetection or tls",
			"spec.trafficPolicy.portLevelSettings[2].port.number: must be a port from 1 to 65535, and is 0",
			"spec.trafficPolicy.portLevelSettings[2]: must have a loadBalancer, connectionPool, outlierDetection or tls"}},
		{"tunnel", "host: a\ntrafficPolicy: {tunnel: {protocol: GET, targetHost: a_b, targetPort: 0}, proxyProtocol: {}}", []string{
			"spec.trafficPolicy.proxyProtocol: a policy can have only one of tunnel and proxyProtocol",
			`spec.trafficPolicy.tunnel.protocol: must be "CONNECT" or "POST"`,
			`spec.trafficPolicy.tunnel.targetHost: "a_b" is no host: use labels of letters, digits and '-', at most 63 each, with dots between them`,
			"spec.trafficPolicy.tunnel.targetPort: must be a port from 1 to 65535, and is 0"}},
		{"outlier detection", "host: a\ntrafficPolicy: {outlierDetection: {baseEjectionTime: 3m, interval: 0s, maxEjectionPercent: 101, minHealthPercent: -1, consecutiveLocalOriginFailures: 1, outlierDetectionHttpErrorCodes: [429, 99, 600]}}", []string{
			"spec.trafficPolicy.outlierDetection.interval: must be a duration of at least 1ms, and is 0s",
			"spec.trafficPolicy.outlierDetection.maxEjectionPercent: must be a percentage from 0 to 100, and is 101",
			"spec.trafficPolicy.outlierDetection.minHealthPercent: must be a percentage from 0 to 100, and is -1",
			"spec.trafficPolicy.outlierDetection.outlierDetectionHttpErrorCodes[1]: must be a status from 100 to 599, and is 99",
			"spec.trafficPolicy.outlierDetection.outlierDetectionHttpErrorCodes[2]: must be a status from 100 to 599, and is 600",
			"spec.trafficPolicy.outlierDetection.consecutiveLocalOriginFailures: needs splitExternalLocalOriginErrors to be true"}},
		{"an empty connection pool", "host: a\ntrafficPolicy: {connectionPool: {}}", []string{"spec.trafficPolicy.connectionPool: must have tcp or http"}},
		{"connection pool", "host: a\ntrafficPolicy: {connectionPool: {tcp: {maxConnections: -1, connectTimeout: 0s, idleTimeout: 0s, tcpKeepalive: {time: 0s}}, " +
			"http: {maxRetries: -1, h2UpgradePolicy: UPGRADE, useClientProtocol: true, http2KeepAlive: {interval: 1s}}}}", []string{
			"spec.trafficPolicy.connectionPool.http.maxRetries: must not be negative, and is -1",
			"spec.trafficPolicy.connectionPool.http.useClientProtocol: must not be true if h2UpgradePolicy is UPGRADE",
			"spec.trafficPolicy.connectionPool.http.http2KeepAlive: must have an interval and a timeout",
			"spec.trafficPolicy.connectionPool.tcp.maxConnections: must not be negative, and is -1",
			"spec.trafficPolicy.connectionPool.tcp.connectTimeout: must be a duration of at least 1ms, and is 0s",
			"spec.trafficPolicy.connectionPool.tcp.tcpKeepalive.time: must be a duration of at least 1ms, and is 0s"}},
		{"retry budget", "host: a\ntrafficPolicy: {retryBudget: {percent: 101, budgetInterval: 0s}}", []string{
			"spec.trafficPolicy.retryBudget.percent: must be a percentage from 0 to 100, and is 101",
			"spec.trafficPolicy.retryBudget.budgetInterval: must be a duration of at least 1ms, and is 0s"}},
		{"fields that are not supported", "host: a\ntrafficPolicy: {outlierDetection: {consecutiveErrors: 1}, loadBalancer: {simple: RANDOM, zoneAwareLbSetting: {enabled: true}}}", []string{
			"spec.trafficPolicy.loadBalancer.zoneAwareLbSetting: warning: only regions are preferred, unless the bootstrap of a proxy has a local_cluster_name, which that of a holdfast agent has not: for zones write localityLbSetting [HM0111]",
			"spec.trafficPolicy.outlierDetection.consecutiveErrors: warning: not supported: deprecated, and Istio ignores it too: write consecutive5xxErrors or consecutiveGatewayErrors [HM0101]"}},
	})
}

func TestClientTLSIsValidated(t *testing.T) {
	validateRows(t, DestinationRule, []row{
		{"mutual without certificates", "host: a\ntrafficPolicy: {tls: {mode: MUTUAL}}", []string{
			"spec.trafficPolicy.tls.clientCertificate: is needed by the mode MUTUAL, or else a credentialName",
			"spec.trafficPolicy.tls.privateKey: is needed by the mode MUTUAL, or else a credentialName"}},
		{"a credential and files", "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, credentialName: c, caCertificates: /ca}}", []string{
			"spec.trafficPolicy.tls.credentialName: cannot be combined with clientCertificate, privateKey, caCertificates or caCrl"}},
		{"no verification, and something to verify", "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true, subjectAltNames: [a]}}", []string{
			"spec.trafficPolicy.tls.insecureSkipVerify: cannot be combined with caCertificates, subjectAltNames or the CA of a credentialName"}},
		{"files without TLS", "host: a\ntrafficPolicy: {tls: {mode: DISABLE, caCertificates: /ca}}", []string{
			"spec.trafficPolicy.tls: warning: the mode DISABLE does not use the certificates that are given [HM0102]"}},
	})
}

func TestLoadBalancersAreValidated(t *testing.T) {
	lb := func(text string) string {
		return "host: a\ntrafficPolicy: {outlierDetection: {}, loadBalancer: {" + text + "}}"
	}
	const at = "spec.trafficPolicy.loadBalancer"
	validateRows(t, DestinationRule, []row{
		{"hash of nothing", lb("consistentHash: {}"), []string{
			at + ".consistentHash: warning: has no key (httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName): requests are distributed at random [HM0112]"}},
		{"cookies", lb("consistentHash: {httpCookie: {ttl: -1s, attributes: [{name: a}, {name: a}, {}]}}"), []string{
			at + ".consistentHash.httpCookie.name: it is missing", at + ".consistentHash.httpCookie.ttl: must be a duration, or 0s for a cookie of the session",
			at + `.consistentHash.httpCookie.attributes[1].name: "a" is there twice`, at + ".consistentHash.httpCookie.attributes[2].name: it is missing"}},
		{"Maglev", lb("consistentHash: {useSourceIp: true, maglev: {tableSize: 100}}"), []string{at + ".consistentHash.maglev.tableSize: must be a prime number below 5000011, and is 100"}},
		{"the largest Maglev table", lb("consistentHash: {useSourceIp: true, maglev: {tableSize: 4999999}}"), nil},
		{"a larger one", lb("consistentHash: {useSourceIp: true, maglev: {tableSize: 5000011}}"), []string{at + ".consistentHash.maglev.tableSize: must be a prime number below 5000011, and is 5000011"}},
		{"the largest ring", lb("consistentHash: {useSourceIp: true, ringHash: {minimumRingSize: 8388608}}"), nil},
		{"a larger one of a ring", lb("consistentHash: {useSourceIp: true, ringHash: {minimumRingSize: 8388609}}"), []string{at + ".consistentHash.ringHash.minimumRingSize: must be at most 8388608, and is 8388609"}},
		{"a larger one in the old field", lb("consistentHash: {useSourceIp: true, minimumRingSize: 9000000}"), []string{at + ".consistentHash.minimumRingSize: must be at most 8388608, and is 9000000"}},
		{"two sizes of a ring", lb("consistentHash: {useSourceIp: true, minimumRingSize: 1, ringHash: {minimumRingSize: 1}}"), []string{
			at + ".consistentHash.minimumRingSize: cannot be combined with ringHash or maglev"}},
		{"both locality settings", lb("localityLbSetting: {}, zoneAwareLbSetting: {failoverPriority: [topology.kubernetes.io/zone]}"), []string{
			at + ".zoneAwareLbSetting: only one of localityLbSetting and zoneAwareLbSetting can be set",
			at + ".zoneAwareLbSetting: warning: only regions are preferred, unless the bootstrap of a proxy has a local_cluster_name, which that of a holdfast agent has not: for zones write localityLbSetting [HM0111]",
			at + `.zoneAwareLbSetting.failoverPriority[0]: "topology.kubernetes.io/zone" is always taken into account: leave it out`}},
		{"distribution", lb("localityLbSetting: {distribute: [{from: a/*, to: {a/b: 50, 'c/*': 49}}, {from: a/b, to: {d: 0, e: 100}}, {from: 'x//y', to: {d: 100}}]}"), []string{
			at + ".localityLbSetting.distribute[0].to: the weights must add up to 100, and add up to 99",
			at + ".localityLbSetting.distribute[1].to.d: must be from 1 to 100, and is 0",
			at + `.localityLbSetting.distribute[2].from: "x//y" is no locality as in region/zone/subzone, where the last may be or end with "*"`}},
		{"localities that overlap", lb("localityLbSetting: {distribute: [{from: a/*, to: {b: 100}}, {from: a/b, to: {b: 50, b/c: 50}}]}"), []string{
			at + `.localityLbSetting.distribute[1].to: "b" and "b/c" overlap`,
			at + `.localityLbSetting.distribute[1].from: "a/*" and "a/b" overlap`}},
		{"failover", lb("localityLbSetting: {failover: [{from: a, to: a}, {from: a/b, to: '*'}], failoverPriority: [topology.kubernetes.io/region]}"), []string{
			at + `.localityLbSetting.failoverPriority[0]: "topology.kubernetes.io/region" cannot be combined with failover`,
			at + ".localityLbSetting.failover[0].to: must be another region than from",
			at + `.localityLbSetting.failover[1].from: must be a region, without "/" and "*"`,
			at + `.localityLbSetting.failover[1].to: must be a region, without "/" and "*"`}},
		{"failover and distribution", lb("localityLbSetting: {failover: [{from: a, to: b}], distribute: [{from: a, to: {b: 100}}]}"), []string{
			at + ".localityLbSetting.failover: only one of distribute and failover can be set"}},
		{"failover without outlier detection", "host: a\ntrafficPolicy: {loadBalancer: {localityLbSetting: {failover: [{from: a, to: b}]}}}", []string{
			at + ".localityLbSetting: warning: there is no failover without outlierDetection [HM0111]"}},
		{"warmup", lb("warmup: {minimumPercent: 101, aggression: 0}"), []string{at + ".warmup.duration: it is missing",
			at + ".warmup.minimumPercent: must be a percentage from 0 to 100, and is 101", at + ".warmup.aggression: must be greater than 0, and is 0"}},
	})
}

func TestGatewaysAreValidated(t *testing.T) {
	server := func(text string) string { return "servers: [{" + text + "}]" }
	const https = "port: {number: 443, name: p, protocol: HTTPS}, hosts: ['*']"
	validateRows(t, Gateway, []row{
		{"valid", server(https + ", tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}"), nil},
		{"no servers", "selector: {a: b}", []string{"spec.servers: must have at least one server"}},
		{"an empty server", server(""), []string{"spec.servers[0].hosts: must have at least one host", "spec.servers[0].port: it is missing"}},
		{"hosts", server("port: {number: 80, name: p, protocol: HTTP}, hosts: [a, '*a.com', a_b/c.com, './a.com', 192.0.2.1, a_b.com, '::1']"), []string{
			`spec.servers[0].hosts[0]: "a" is a short name: write the full name of the host`,
			`spec.servers[0].hosts[1]: "*a.com" has a "*" that is only a part of a label: such a host is not matched`,
			`spec.servers[0].hosts[2]: "a_b" is no namespace, "." or "*"`,
			`spec.servers[0].hosts[5]: "a_b.com" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`,
			`spec.servers[0].hosts[6]: "::1" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`}},
		{"ports", server("port: {number: 0, protocol: SMTP, targetPort: 1}, bind: x, hosts: ['*']"), []string{
			"spec.servers[0].port.number: must be a port from 1 to 65535, and is 0", `spec.servers[0].bind: "x" is no IP address`,
			`spec.servers[0].port.protocol: "SMTP" is no protocol: write one of HTTP, HTTPS, HTTP2, GRPC, GRPC-Web, TLS, TCP, MONGO, REDIS, MYSQL`,
			"spec.servers[0].port.name: it is missing", "spec.servers[0].port.targetPort: has no effect in a Gateway"}},
		{"a Unix socket", server("port: {number: 1, name: p, protocol: HTTP}, bind: 'unix://x', hosts: ['*']"), []string{
			`spec.servers[0].bind: "unix://x" is no absolute path of a socket`, "spec.servers[0].port.number: must be 0 for a Unix socket"}},
		{"a name of two ports", "servers: [{port: {number: 80, name: p, protocol: HTTP}, hosts: ['*']}, {port: {number: 81, name: p, protocol: HTTP}, hosts: ['*']}]", []string{
			`spec.servers[1].port.name: "p" is the name of the port of servers[0] too`}},
		{"HTTPS without TLS", server(https), []string{"spec.servers[0].tls: is needed by the protocol HTTPS"}},
		{"HTTP with TLS", server("port: {number: 80, name: p, protocol: HTTP}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: c}"), []string{
			"spec.servers[0].tls: the protocol HTTP has no TLS: only httpsRedirect can be set"}},
		{"HTTP with a redirect", server("port: {number: 80, name: p, protocol: HTTP}, hosts: ['*'], tls: {httpsRedirect: true}"), nil},
		{"TCP with TLS", server("port: {number: 80, name: p, protocol: TCP}, hosts: ['*'], tls: {httpsRedirect: true}"), []string{
			"spec.servers[0].tls: the protocol TCP has no TLS: write HTTPS or TLS", "spec.servers[0].tls.httpsRedirect: warning: has an effect for HTTP only [HM0102]"}},
	})
}

func TestServerTLSIsValidated(t *testing.T) {
	tls := func(text string) string {
		return "servers: [{port: {number: 443, name: p, protocol: HTTPS}, hosts: ['*'], tls: {" + text + "}}]"
	}
	const at = "spec.servers[0].tls"
	validateRows(t, Gateway, []row{
		{"simple without certificates", tls("mode: SIMPLE"), []string{at + ".serverCertificate: is needed by the mode SIMPLE, or else a credentialName",
			at + ".privateKey: is needed by the mode SIMPLE, or else a credentialName"}},
		{"mutual without a CA", tls("mode: MUTUAL, serverCertificate: /c, privateKey: /k"), []string{at + ".caCertificates: is needed by the mode MUTUAL, or else a credentialName"}},
		{"two sources", tls("mode: SIMPLE, credentialName: c, serverCertificate: /c, privateKey: /k"), []string{
			at + ".credentialName: there must be one source of certificates, and there are serverCertificate and credentialName"}},
		{"mesh mTLS with certificates", tls("mode: ISTIO_MUTUAL, credentialName: c"), []string{at + ": the mode ISTIO_MUTUAL uses the certificates of the mesh: remove the others"}},
		{"passthrough with certificates", tls("mode: PASSTHROUGH, credentialName: c"), []string{at + ": warning: the mode PASSTHROUGH uses no certificates: those that are given have no effect [HM0102]"}},
		{"a CRL in the mode SIMPLE", tls("mode: SIMPLE, credentialName: c, caCrl: /crl"), []string{at + ".caCrl: warning: has no effect with a credentialName: the CRL is in the credential [HM0102]"}},
		{"a CRL without clients' certificates", tls("mode: SIMPLE, serverCertificate: /c, privateKey: /k, caCrl: /crl"), []string{
			at + ".caCrl: cannot be combined with the mode SIMPLE, in which clients have no certificates"}},
		{"incomplete certificates", tls("mode: SIMPLE, tlsCertificates: [{serverCertificate: /c}, {serverCertificate: /c, privateKey: /k}, {serverCertificate: /c, privateKey: /k}]"), []string{
			at + ".tlsCertificates: warning: proxies use up to 2 certificates [HM0108]", at + ".tlsCertificates[0]: must have a serverCertificate and a privateKey"}},
		{"versions and lists", tls("mode: SIMPLE, credentialName: c, minProtocolVersion: TLSV1_3, maxProtocolVersion: TLSV1_2, cipherSuites: [A, A, '']"), []string{
			at + ".minProtocolVersion: must not be above maxProtocolVersion", at + `.cipherSuites[1]: warning: "A" is there twice [HM0103]`, at + ".cipherSuites[2]: must not be empty"}},
	})
}

func TestSidecarsAreValidated(t *testing.T) {
	validateRows(t, Sidecar, []row{
		{"valid", "egress: [{port: {number: 80, protocol: HTTP, name: http}, hosts: ['./*', '~x/*']}, {hosts: ['istio-system/*']}]\ningress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: 127.0.0.1:8080}]", nil},
		{"empty", "workloadSelector: {}", []string{
			"spec.workloadSelector: warning: selects by no label, and therefore applies to all workloads of the namespace [HM0104]",
			"spec: must have ingress, egress, an outboundTrafficPolicy or an inboundConnectionPool"}},
		{"ingress", "ingress: [{}, {port: {number: 80, protocol: X, name: a_b, targetPort: 1}, bind: x, defaultEndpoint: a:80}, {port: {number: 80}, defaultEndpoint: ':0'}]", []string{
			"spec.ingress[0].port: it is missing", `spec.ingress[1].port.name: "a_b" is no name of a port: use lower case letters, digits and '-', at most 63`,
			`spec.ingress[1].port.protocol: "X" is no protocol: write one of HTTP, HTTPS, HTTP2, GRPC, GRPC-Web, TLS, TCP, MONGO, REDIS, MYSQL`,
			"spec.ingress[1].port.targetPort: has no effect in a Sidecar", `spec.ingress[1].bind: "x" is no IP address`,
			"spec.ingress[1].defaultEndpoint: must be as in 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT, :PORT or unix:///PATH",
			"spec.ingress[2].defaultEndpoint: must be a port from 1 to 65535, and is 0", "spec.ingress[2].port.number: another ingress has the port 80 too"}},
		{"TLS of ingress", "ingress: [{port: {number: 80, protocol: HTTP}, tls: {mode: ISTIO_MUTUAL, httpsRedirect: true}}]", []string{
			"spec.ingress[0].tls.httpsRedirect: cannot be used in a Sidecar", "spec.ingress[0].tls.mode: ISTIO_MUTUAL cannot be used in a Sidecar",
			`spec.ingress[0].tls: the protocol must be HTTPS or TLS, and is "HTTP"`}},
		{"HTTP limits of TCP", "ingress: [{port: {number: 80, protocol: TCP}, connectionPool: {http: {maxRetries: 1}}}]", []string{
			"spec.ingress[0].connectionPool.http: warning: has no effect for the protocol TCP [HM0102]"}},
		{"egress", "egress: [{hosts: ['*/*']}, {port: {number: 0}, bind: x, hosts: [a]}, {port: {number: 1}, hosts: [a/b, a_b/c.com, '*/*', '*/*']}, {port: {number: 1}, hosts: []}]", []string{
			"spec.egress[0]: only the last egress can be without a port, which catches everything else",
			"spec.egress[1].port.number: must be a port from 1 to 65535, or bind must be unix:///PATH", `spec.egress[1].hosts[0]: "a" must be of the form namespace/host`,
			`spec.egress[2].hosts[0]: "b" is a short name: write the full name of the host`, `spec.egress[2].hosts[1]: "a_b" is no namespace, ".", "*" or "~"`,
			`spec.egress[2].hosts[3]: warning: "*/*" is there twice [HM0103]`, `spec.egress[2].hosts: warning: "*/*" contains all other hosts [HM0103]`,
			"spec.egress[3].port.number: another egress has the port 1 too", "spec.egress[3].hosts: must have at least one host"}},
		{"sockets of egress", "egress: [{port: {protocol: HTTP}, bind: 'unix:///s', captureMode: IPTABLES, hosts: ['*/*']}, {port: {protocol: HTTP}, bind: 'unix:///s', hosts: ['*/*']}]", []string{
			"spec.egress[0].captureMode: must be DEFAULT or NONE for a Unix socket", "spec.egress[1].bind: another egress has this socket too"}},
		{"egress proxy", "outboundTrafficPolicy: {mode: REGISTRY_ONLY, egressProxy: {host: '*.a'}}", []string{
			"spec.outboundTrafficPolicy.egressProxy: needs the mode ALLOW_ANY",
			`spec.outboundTrafficPolicy.egressProxy.host: "*.a" is no host: use labels of letters, digits and '-', at most 63 each, with dots between them`,
			"spec.outboundTrafficPolicy.egressProxy.port: it is missing"}},
		{"a mode that is only for the mesh", "outboundTrafficPolicy: {mode: 2}", []string{"spec.outboundTrafficPolicy.mode: must be REGISTRY_ONLY or ALLOW_ANY"}},
	})
}

func TestServiceEntriesAreValidated(t *testing.T) {
	const port = "ports: [{number: 80, name: http, protocol: HTTP}]\n"
	validateRows(t, ServiceEntry, []row{
		{"valid", "hosts: [a.com]\nresolution: DNS\nexportTo: ['~']\n" + port, nil},
		{"empty", "{}", []string{"spec.hosts: must have at least one host"}},
		{"hosts", "hosts: ['*', 'a_b', '*a.com']\n" + port, []string{`spec.hosts[0]: "*" is too much: a ServiceEntry describes some hosts`,
			`spec.hosts[1]: "a_b" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`,
			`spec.hosts[2]: warning: "*a.com" has a "*" that is only a part of a label: such a host is not matched [HM0115]`}},
		{"automatic addresses", "hosts: [a.com]\naddresses: [10.0.0.1, '2001:2::f0f0:1', 240.240.0.0/24]\nresolution: STATIC\n" + port, []string{`spec.addresses: warning: "2001:2::f0f0:1" is one of the addresses that services without one are given (240.240.0.0/16, 2001:2::/48), and others here are, too: it is not this one's while an older service has it [HM0412]`}},
		{"no automatic addresses", "hosts: [a.com]\naddresses: [240.0.0.0/4, '2001:3::1', 240.241.0.1]\nresolution: STATIC\n" + port, nil},
		{"addresses", "hosts: [a.com]\naddresses: [x, 10.0.0.0/8]\nresolution: DNS\n" + port, []string{`spec.addresses[0]: "x" is no IP address`, "spec.addresses[1]: a prefix needs the resolution NONE or STATIC"}},
		{"ports", "hosts: [a.com]\nports: [{number: 0, name: a_b}, {number: 80, name: a, protocol: X}, {number: 80, name: a, targetPort: 70000}]", []string{
			`spec.ports[0].name: "a_b" is no name of a port: use lower case letters, digits and '-', at most 63`,
			"spec.ports[0].number: must be a port from 1 to 65535, and is 0",
			`spec.ports[1].protocol: "X" is no protocol: write one of HTTP, HTTPS, HTTP2, GRPC, GRPC-Web, TLS, TCP, MONGO, REDIS, MYSQL`,
			"spec.ports[2].targetPort: must be a port from 1 to 65535, and is 70000", `spec.ports[2].name: "a" is the name of ports[1] too`, "spec.ports[2].number: 80 is the number of ports[1] too"}},
		{"several hosts of TCP", "hosts: [a.com, b.com]\nresolution: STATIC\nports: [{number: 80, name: tcp, protocol: TCP}]", []string{
			"spec.ports[0].protocol: several hosts need a protocol with names of hosts, HTTP or TLS"}},
		{"a selector and endpoints", "hosts: [a.com]\nresolution: STATIC\nworkloadSelector: {labels: {a: b}}\nendpoints: [{address: 10.0.0.1}]\n" + port, []string{
			"spec.workloadSelector: only one of workloadSelector and endpoints can be set"}},
		{"endpoints without resolution", "hosts: [a.com]\nendpoints: [{address: 10.0.0.1}]\n" + port, []string{"spec.endpoints: the resolution NONE forwards to where the client connected: endpoints have no effect"}},
		{"endpoints that are static", "hosts: [a.com]\nresolution: STATIC\nendpoints: [{address: b.com}, {address: 'unix:///s', ports: {http: 1}}, {address: 10.0.0.1, ports: {tcp: 0}, labels: {a: 'b c'}}, {}]\n" + port, []string{
			`spec.endpoints[0].address: "b.com" is no IP address`, "spec.endpoints[1].ports: a Unix socket has no ports",
			"spec.endpoints[2].ports.tcp: must be a port from 1 to 65535, and is 0", `spec.endpoints[2].labels.a: "b c" is no value of a label`,
			"spec.endpoints[2].ports.tcp: the ServiceEntry has no port of this name", "spec.endpoints[3].address: it is missing"}},
		{"endpoints by DNS", "hosts: ['*.a.com']\nresolution: DNS_ROUND_ROBIN\nendpoints: [{address: b.com}, {address: 'unix:///s'}]\n" + port, []string{
			"spec.endpoints: the resolution DNS_ROUND_ROBIN can have only one endpoint", "spec.endpoints[1].address: a Unix socket needs the resolution STATIC"}},
		{"an endpoint by DNS without an address", "hosts: [a.com]\nresolution: DNS\nendpoints: [{network: n1}]\n" + port, []string{"spec.endpoints[0].address: it is missing"}},
		{"a wildcard by DNS", "hosts: ['*.a.com']\nresolution: DNS\n" + port, []string{`spec.hosts[0]: "*.a.com" cannot be resolved: without endpoints, the resolution DNS needs a full host`}},
		{"dynamic DNS", "hosts: [a.com]\nresolution: DYNAMIC_DNS\naddresses: [10.0.0.1]\nendpoints: [{address: 10.0.0.1}]\nports: [{number: 80, name: tcp, protocol: TCP}]", []string{
			`spec.hosts[0]: the resolution DYNAMIC_DNS is for hosts with "*"`, "spec.addresses: must be empty with the resolution DYNAMIC_DNS",
			"spec.endpoints: must be empty with the resolution DYNAMIC_DNS", "spec.ports[0].protocol: must be HTTP, HTTP2, GRPC or TLS with the resolution DYNAMIC_DNS"}},
		{"a resolution that is none", "hosts: [a.com]\nresolution: 9\n" + port, []string{"spec.resolution: 9 is no resolution"}},
	})
}

func TestWorkloadEntriesAreValidated(t *testing.T) {
	validateRows(t, WorkloadEntry, []row{
		{"valid", "address: 10.0.0.1\nports: {http: 80}\nlabels: {app: a, example.com/b: c}\nlocality: a/b/c", nil},
		{"a name", "address: vm.example.com", nil},
		{"no address", "{}", []string{"spec.address: it is missing"}},
		{"only a network", "network: n1", []string{"spec.address: warning: it is missing: the workload is reached through the gateways of its network only [HM0113]"}},
		{"wrong values", "address: a_b\nports: {a_b: 0}\nlabels: {'a b': c}\nlocality: a//b", []string{
			`spec.address: "a_b" is neither an IP address nor a host`, `spec.ports.a_b: "a_b" is no name of a port: use lower case letters, digits and '-', at most 63`,
			"spec.ports.a_b: must be a port from 1 to 65535, and is 0", `spec.labels.a b: "a b" is no key of a label`,
			`spec.locality: warning: "a//b" is no locality as in region/zone/subzone [HM0111]`}},
	})
}

func TestPeerAuthenticationsAreValidated(t *testing.T) {
	validateRows(t, PeerAuthentication, []row{
		{"of the namespace", "mtls: {mode: STRICT}", nil},
		{"of a workload", "selector: {matchLabels: {app: a}}\nportLevelMtls: {8080: {mode: DISABLE}}", nil},
		{"ports without a selector", "portLevelMtls: {80: {mode: STRICT}}", []string{"spec.portLevelMtls: needs a selector: modes of ports are for selected workloads"}},
		{"ports", "selector: {matchLabels: {app: a}}\nportLevelMtls: {70000: {}, 0: {}}", []string{
			"spec.portLevelMtls.0: must be a port from 1 to 65535", "spec.portLevelMtls.70000: must be a port from 1 to 65535"}},
		{"a selector with a wildcard", "selector: {matchLabels: {app: 'a*'}}", []string{"spec.selector.app: labels are compared as they are: there are no wildcards"}},
	})
}

func TestEnvoyFiltersAreValidated(t *testing.T) {
	const lua = `{name: lua, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}`
	patch := func(text string) string { return "configPatches: [{" + text + "}]" }
	const at = "spec.configPatches[0]"
	validateRows(t, EnvoyFilter, []row{
		{"valid", "workloadSelector: {labels: {app: a}}\n" + patch("applyTo: HTTP_FILTER, match: {context: GATEWAY}, patch: {operation: INSERT_FIRST, value: "+lua+"}"), nil},
		{"a selector of nothing", "workloadSelector: {}", []string{"spec.workloadSelector: warning: selects by no label, and therefore applies to all workloads of the namespace [HM0104]"}},
		{"a selector and references", "workloadSelector: {labels: {app: a}}\ntargetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: a}]", []string{"spec.targetRefs: cannot be used together with workloadSelector"}},
		{"references", "targetRefs: [{}, {kind: Service, name: a}, {group: networking.istio.io, kind: Gateway, name: a}, {group: gateway.networking.k8s.io, kind: Gateway, name: a, namespace: other}]", []string{
			"spec.targetRefs[0]: must have a kind and a name",
			"spec.targetRefs[1]: warning: selects no proxy: only a Gateway of gateway.networking.k8s.io can be named; select other gateways by labels [HM0301]",
			"spec.targetRefs[2]: warning: selects no proxy: only a Gateway of gateway.networking.k8s.io can be named; select other gateways by labels [HM0301]",
			`spec.targetRefs[3].namespace: must be that of the document, and is "other"`}},
		{"no applyTo", patch("patch: {operation: REMOVE}"), []string{at + ".applyTo: it is missing"}},
		{"no patch", patch("applyTo: CLUSTER"), []string{at + ".patch: it is missing"}},
		{"no operation", patch("applyTo: CLUSTER, patch: {}"), []string{at + ".patch.operation: it is missing"}},
		{"no value", patch("applyTo: CLUSTER, patch: {operation: MERGE}"), []string{at + ".patch.value: it is missing: only a REMOVE has none"}},
		{"a bootstrap", patch("applyTo: BOOTSTRAP, match: {proxy: {metadata: {a: b}}}, patch: {operation: MERGE, value: {stats_flush_interval: 1s}}"), nil},
		{"an object of a bootstrap", patch("applyTo: BOOTSTRAP, match: {context: GATEWAY, cluster: {name: a}}, patch: {operation: ADD, value: {}}"), []string{
			at + ".match.cluster: warning: has no effect on BOOTSTRAP [HM0102]", at + ".patch.operation: warning: ADD has no effect on BOOTSTRAP [HM0102]"}},
		{"a waypoint", patch("applyTo: CLUSTER, match: {context: WAYPOINT}, patch: {operation: REMOVE}"), []string{at + ".match.context: warning: the patch has no effect: there are no waypoints [HM0102]"}},
		{"a version", patch("applyTo: CLUSTER, match: {proxy: {proxyVersion: '('}}, patch: {operation: REMOVE}"), []string{
			at + ".match.proxy.proxyVersion: is no regular expression: missing closing ): `(`"}},
		{"another match", patch("applyTo: CLUSTER, match: {listener: {name: a}}, patch: {operation: REMOVE}"), []string{at + ".match.listener: CLUSTER is matched by a cluster"}},
		{"a match of an extension", patch("applyTo: EXTENSION_CONFIG, match: {listener: {name: a}}, patch: {operation: REMOVE}"), []string{
			at + ".match.listener: warning: has no effect on EXTENSION_CONFIG [HM0102]", at + ".patch.operation: warning: REMOVE has no effect on EXTENSION_CONFIG [HM0102]"}},
		{"a filter in another", patch("applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy, subFilter: {name: a}}}}}, patch: {operation: REMOVE}"), []string{
			at + ".match.listener.filterChain.filter.subFilter: can only be used with HTTP_FILTER"}},
		{"a filter in TCP", patch("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy, subFilter: {name: a}}}}}, patch: {operation: REMOVE}"), []string{
			at + ".match.listener.filterChain.filter.name: only envoy.filters.network.http_connection_manager has filters in it"}},
		{"filters without names", patch("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {}}}}, patch: {operation: REMOVE}"), []string{at + ".match.listener.filterChain.filter.name: it is missing"}},
		{"old names", patch("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.http_connection_manager, subFilter: {name: envoy.router}}}}}, patch: {operation: REMOVE}"), []string{
			at + ".match.listener.filterChain.filter.name: warning: filters have no such name any more: write it as in envoy.filters.network.http_connection_manager [HM0107]",
			at + ".match.listener.filterChain.filter.subFilter.name: warning: filters have no such name any more: write it as in envoy.filters.network.http_connection_manager [HM0107]"}},
		{"values", "configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {conect_timeout: 1s}}}, {applyTo: CLUSTER, patch: {operation: ADD, value: {connect_timeout: 0s, name: a}}}]", []string{
			at + `.patch.value.conect_timeout: unknown field "conect_timeout", did you mean connect_timeout?`, "spec.configPatches[1].patch.value.connect_timeout: value must be greater than 0s"}},
		{"fields that are not supported", patch("applyTo: HTTP_FILTER, match: {listener: {portName: http}}, patch: {operation: ADD, filterClass: AUTHZ, value: " + lua + "}"), []string{
			at + ".match.listener.portName: warning: not supported: Istio does not implement it: write the portNumber [HM0101]",
			at + ".patch.filterClass: warning: not supported: as with istiod it has no effect: say the place by the operation and the name of a filter [HM0101]"}},
	})
}

func TestProblemsOfPatchesNameTheLineOfTheField(t *testing.T) {
	compare(t, problems(t, "file.yaml", `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: a}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    patch:
      operation: INSERT_FIRST
      value:
        name: lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code:
            inline_strin: x
  - applyTo: CLUSTER
    patch:
      operation: MERGE
      value:
        connect_timeout: 1s
        outlierDetection:
          max_ejection_percent: 101
`), []string{
		`file.yaml:14: EnvoyFilter default/a: spec.configPatches[0].patch.value.typed_config.default_source_code.inline_strin: unknown field "inline_strin", did you mean inline_string?`,
		"file.yaml:21: EnvoyFilter default/a: spec.configPatches[1].patch.value.outlier_detection.max_ejection_percent: value must be less than or equal to 100",
	})
}

// Envoy rejects a whole resource for a NUL or a line break in one of its texts.
func TestTextsHaveNoCharactersThatEnvoyRejects(t *testing.T) {
	validateRows(t, VirtualService, []row{
		{"a NUL", "hosts: [a.test]\nhttp: [{rewrite: {uri: \"\\0/\"}, route: [{destination: {host: a.test}}]}]", []string{"spec.http[0].rewrite.uri: has a NUL character"}},
		{"a line break", "hosts: [a.test]\nhttp: [{rewrite: {authority: \"a\\nb\"}, route: [{destination: {host: a.test}}]}]", []string{"spec.http[0].rewrite.authority: has a line break"}},
		{"an answer of several lines", "hosts: [a.test]\nhttp: [{directResponse: {status: 200, body: {string: \"a\\r\\nb\"}}}]", nil},
	})
}

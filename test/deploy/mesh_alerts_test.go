package deploy

// meshAlertCases are states of replicas of holdfast-mesh and of etcd.
var meshAlertCases = []alertCase{
	{"HoldfastMeshDown", "10m", []string{`up{POD,job="monitoring/holdfast-mesh"} 0x20`, `up{POD,job="monitoring/holdfast"} 0x20`}, "POD job=monitoring/holdfast-mesh",
		"The replica web-1 of holdfast-mesh does not answer"},
	{"HoldfastMeshDown", "10m", []string{`up{POD,job="holdfast-mesh"} 1x20`, `up{POD,job="holdfast"} 0x20`}, "", ""},

	{"HoldfastMeshNotReady", "10m", []string{`holdfast_mesh_ready{POD} 0x20`}, "POD", "The replica web-1 of holdfast-mesh serves no proxies"},
	{"HoldfastMeshNotReady", "10m", []string{`holdfast_mesh_ready{POD} 0 0 0 1x20`}, "", ""},

	{"HoldfastMeshReplicaBehind", "10m", []string{`holdfast_mesh_store_revision{POD} 100x20`, `holdfast_mesh_store_revision{namespace="shop",pod="web-2"} 100+10x20`}, "POD",
		"web-1 lacks changes of documents that other replicas have; it is at revision 100"},
	{"HoldfastMeshReplicaBehind", "10m", []string{ // another mesh
		`holdfast_mesh_store_revision{POD} 100x20`, `holdfast_mesh_store_revision{namespace="bank",pod="web-2"} 100+10x20`,
	}, "", ""},
	{"HoldfastMeshReplicaBehind", "10m", []string{ // a minute between two scrapes
		`holdfast_mesh_store_revision{POD} 100+10x20`, `holdfast_mesh_store_revision{namespace="shop",pod="web-2"} 110+10x20`,
	}, "", ""},
	{"HoldfastMeshReplicaBehind", "7m", []string{ // a backup was restored
		`holdfast_mesh_store_revision{POD} 500 500 500 500 10+1x20`, `holdfast_mesh_store_revision{namespace="shop",pod="web-2"} 500 500 500 500 10+1x20`,
	}, "", ""},

	{"HoldfastMeshNearlyFull", "15m", []string{`pilot_xds{POD} 1850x20`, `holdfast_mesh_max_proxies{POD} 2000x20`}, "POD", "web-1 has 1850 proxies, nearly as many as --max-proxies permits"},
	{"HoldfastMeshNearlyFull", "15m", []string{`pilot_xds{POD} 1700x20`, `holdfast_mesh_max_proxies{POD} 2000x20`}, "", ""},
	{"HoldfastMeshNearlyFull", "15m", []string{`pilot_xds{POD} 1700x20`, `holdfast_mesh_max_proxies{POD} 0x20`}, "", ""}, // any number

	{"HoldfastMeshProxiesShed", "15m", []string{`holdfast_mesh_clients_refused_total{POD,code="ResourceExhausted"} 0+2x20`, `holdfast_mesh_clients_refused_total{POD,code="Unauthenticated"} 9x20`}, "POD",
		"web-1 is full: it has sent 20 times a proxy to another replica in ten minutes"},
	{"HoldfastMeshProxiesShed", "15m", []string{`holdfast_mesh_clients_refused_total{POD,code="ResourceExhausted"} 7x20`, `holdfast_mesh_clients_refused_total{POD,code="Unauthenticated"} 0+2x20`}, "", ""},

	{"HoldfastMeshClientsRefused", "15m", []string{`holdfast_mesh_clients_refused_total{POD,code="Unauthenticated"} 0+1x20`, `holdfast_mesh_clients_refused_total{POD,code="ResourceExhausted"} 0+9x20`}, "POD code=Unauthenticated",
		"web-1 rejects clients that do not prove who they are, or are somebody else (Unauthenticated)"},
	{"HoldfastMeshClientsRefused", "15m", []string{`holdfast_mesh_clients_refused_total{POD,code="Unauthenticated"} 0x9 1x20`, `holdfast_mesh_clients_refused_total{POD,code="ResourceExhausted"} 0+9x20`}, "", ""},

	{"HoldfastMeshStoreDown", "5m", []string{`holdfast_mesh_store_up{POD} 0x20`, `holdfast_mesh_store_up{namespace="shop",pod="web-2"} 0x20`}, "namespace=shop",
		"No replica of holdfast-mesh reaches etcd; proxies keep what they have, and documents cannot be changed"},
	{"HoldfastMeshStoreDown", "5m", []string{`holdfast_mesh_store_up{POD} 0x20`, `holdfast_mesh_store_up{namespace="shop",pod="web-2"} 1x20`}, "", ""},

	{"HoldfastMeshReplicaWithoutStore", "10m", []string{`holdfast_mesh_store_up{POD} 0x20`, `holdfast_mesh_store_up{namespace="shop",pod="web-2"} 1x20`}, "POD", "web-1 does not reach etcd"},
	{"HoldfastMeshReplicaWithoutStore", "10m", []string{`holdfast_mesh_store_up{POD} 0 0 0 1x20`}, "", ""},

	{"HoldfastMeshRemovalsHeld", "2m", []string{`holdfast_mesh_store_removals_held{POD} 12x5`}, "POD", "etcd was restored, and lacks 12 documents that web-1 removes five minutes later"},
	{"HoldfastMeshRemovalsHeld", "2m", []string{`holdfast_mesh_store_removals_held{POD} 0x5`}, "", ""},

	{"HoldfastMeshInvalidDocuments", "10m", []string{`holdfast_mesh_store_invalid_documents{POD} 2x20`}, "POD", "2 documents in etcd are not valid for web-1; their last valid content is in use"},
	{"HoldfastMeshInvalidDocuments", "10m", []string{`holdfast_mesh_store_invalid_documents{POD} 0 2 2 0x20`}, "", ""},

	{"HoldfastMeshNamespaceTooLarge", "10m", []string{`holdfast_mesh_store_unused_documents{POD} 2x20`}, "POD", "2 documents in etcd are not used by web-1: their namespaces have too many"},
	{"HoldfastMeshNamespaceTooLarge", "10m", []string{`holdfast_mesh_store_unused_documents{POD} 0 2 2 0x20`}, "", ""},

	{"HoldfastMeshWorkloadsCrowded", "20m", []string{`holdfast_mesh_workloads{POD,state="crowded"} 3x30`, `holdfast_mesh_workloads{POD,state="refused"} 9x30`}, "POD state=crowded", "3 workloads have no place at web-1: their service accounts have registered as many as may be"},
	{"HoldfastMeshWorkloadsCrowded", "20m", []string{`holdfast_mesh_workloads{POD,state="crowded"} 0x30`, `holdfast_mesh_workloads{POD,state="refused"} 9x30`}, "", ""},

	{"HoldfastMeshDocumentErrors", "10m", []string{`holdfast_mesh_document_errors{POD} 2x20`}, "POD", "There are 2 errors in the documents of web-1; the last valid content is in use"},
	{"HoldfastMeshDocumentErrors", "10m", []string{`holdfast_mesh_document_errors{POD} 2 2 2 0x20`}, "", ""},
	{"HoldfastMeshDocumentErrors", "10m", []string{`holdfast_mesh_document_errors{POD} 2x20`, `holdfast_mesh_store_up{POD} 1x20`}, "", ""}, // with etcd

	{"HoldfastMeshDocumentWarnings", "70m", []string{`holdfast_mesh_document_warnings{POD,code="HM0201"} 2x90`, `holdfast_mesh_document_warnings{POD,code="HM0203"} 0x30 1x60`}, "POD",
		"There are 3 warnings about the documents of web-1"},
	{"HoldfastMeshDocumentWarnings", "70m", []string{`holdfast_mesh_document_warnings{POD,code="HM0201"} 2x30 _x60`}, "", ""},

	{"HoldfastMeshNacks", "10m", []string{`pilot_total_xds_rejects{POD,type="lds"} 0 0 4x20`, `pilot_total_xds_rejects{namespace="shop",pod="web-2",type="lds"} 0 0 5x20`}, "namespace=shop type=lds",
		"Proxies have NACKed 9 lds responses of holdfast-mesh in ten minutes"},
	{"HoldfastMeshNacks", "10m", []string{`pilot_total_xds_rejects{POD,type="lds"} 0 0 1x20`, `pilot_total_xds_rejects{POD,type="cds"} 50x20`}, "", ""},

	{"HoldfastMeshProxiesBehind", "15m", []string{`holdfast_mesh_proxies_behind{POD} 12x20`, `pilot_xds{POD} 200x20`}, "POD", "12 proxies of web-1 have not answered a change for ten minutes, or at no time all have"},
	{"HoldfastMeshProxiesBehind", "15m", []string{`holdfast_mesh_proxies_behind{POD} 12x20`, `pilot_xds{POD} 2000x20`}, "", ""},
	{"HoldfastMeshProxiesBehind", "15m", []string{`holdfast_mesh_proxies_behind{POD} 12x12 0 150x7`, `pilot_xds{POD} 200x20`}, "", ""},

	{"HoldfastMeshConvergenceSlow", "20m", []string{
		`pilot_proxy_convergence_time_bucket{POD,le="10"} 0+97x30`, `pilot_proxy_convergence_time_bucket{POD,le="20"} 0+100x30`,
		`pilot_proxy_convergence_time_bucket{POD,le="+Inf"} 0+100x30`, `pilot_proxy_convergence_time_count{POD} 0+100x30`,
	}, "namespace=shop", "One of a hundred changes takes longer than 16.67s until a proxy has it"},
	{"HoldfastMeshConvergenceSlow", "20m", []string{
		`pilot_proxy_convergence_time_bucket{POD,le="10"} 0+100x30`, `pilot_proxy_convergence_time_bucket{POD,le="20"} 0+100x30`,
		`pilot_proxy_convergence_time_bucket{POD,le="+Inf"} 0+100x30`, `pilot_proxy_convergence_time_count{POD} 0+100x30`,
	}, "", ""},
	{"HoldfastMeshConvergenceSlow", "20m", []string{ // a few changes say nothing
		`pilot_proxy_convergence_time_bucket{POD,le="10"} 0+1x30`, `pilot_proxy_convergence_time_bucket{POD,le="20"} 0+2x30`,
		`pilot_proxy_convergence_time_bucket{POD,le="+Inf"} 0+2x30`, `pilot_proxy_convergence_time_count{POD} 0+2x30`,
	}, "", ""},

	{"HoldfastEtcdNoLeader", "3m", []string{`etcd_server_has_leader{instance="etcd-0:2381"} 0x5`, `etcd_server_has_leader{instance="etcd-1:2381"} 1x5`}, "instance=etcd-0:2381",
		"The member etcd-0:2381 of etcd has no leader"},
	{"HoldfastEtcdNoLeader", "3m", []string{`etcd_server_has_leader{instance="etcd-0:2381"} 1 1 0 1 1`}, "", ""},

	{"HoldfastEtcdDatabaseNearQuota", "15m", []string{`etcd_mvcc_db_total_size_in_bytes{instance="etcd-0:2381"} 7e9x20`, `etcd_server_quota_backend_bytes{instance="etcd-0:2381"} 8e9x20`}, "instance=etcd-0:2381",
		"The database of the member etcd-0:2381 of etcd has 87.5% of its quota; when it is full, nothing can be written"},
	{"HoldfastEtcdDatabaseNearQuota", "15m", []string{`etcd_mvcc_db_total_size_in_bytes{instance="etcd-0:2381"} 6e9x20`, `etcd_server_quota_backend_bytes{instance="etcd-0:2381"} 8e9x20`}, "", ""},
}

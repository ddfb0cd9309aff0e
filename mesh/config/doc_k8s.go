package config

import (
	_ "istio.io/api/mesh/v1alpha1"
	_ "istio.io/api/networking/v1alpha3"
	_ "istio.io/api/security/v1beta1"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/api/discovery/v1"
	_ "k8s.io/api/networking/v1"
)

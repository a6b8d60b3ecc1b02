// The entry of libverbena-fi.so, which libfabric loads from FI_PROVIDER_PATH.
#include <rdma/providers/fi_prov.h>

#include "src/ofi/fabric.h"
#include "src/ofi/info.h"
#include "verbena/version.h"

// Runs even where FI_PROVIDER leaves this provider out, so it only tells where its calls are.
extern "C" FI_EXT_INI {
  // libfabric writes to it.
  static fi_provider provider = {
      .version = FI_VERSION(VERBENA_VERSION_MAJOR, VERBENA_VERSION_MINOR),
      .fi_version = verbena::ofi::kInterfaceVersion,
      .context = {},
      .name = verbena::ofi::kProviderName,
      .getinfo = verbena::ofi::get_info,
      .fabric = verbena::ofi::open_fabric,
      .cleanup = [] {},
  };
  return &provider;
}

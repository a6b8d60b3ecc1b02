#include "src/ofi/domain.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "src/base/log.h"
#include "src/ofi/address_vector.h"
#include "src/ofi/completion_queue.h"
#include "src/ofi/counter.h"
#include "src/ofi/endpoint.h"
#include "src/ofi/info.h"
#include "src/ofi/memory_region.h"
#include "src/ofi/secret.h"

namespace verbena::ofi {
namespace {

int close_domain(fid* handle) {
  Domain& domain = object_of<Domain>(handle);
  if (domain.users.load() != 0) return -FI_EBUSY;
  delete &domain;
  return 0;
}

fi_ops domain_object_calls = object_calls(close_domain);

fi_ops_domain domain_calls = {
    .size = sizeof(fi_ops_domain),
    .av_open = open_address_vector,
    .cq_open = open_completion_queue,
    .endpoint = open_endpoint,
    .scalable_ep = &unsupported,
    .cntr_open = open_counter,
    .poll_open = &unsupported,
    .stx_ctx = &unsupported,
    .srx_ctx = &unsupported,
    .query_atomic = query_atomic,
    .query_collective = &unsupported,
    .endpoint2 = &unsupported,
};

Result<Domain*> make_domain(const char* name, fi_threading threading) {
  VERBENA_ASSIGN_OR_RETURN(JobSecret secret, find_secret());
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(name));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain protection_domain, ProtectionDomain::create(device));
  return new Domain(std::move(device), std::move(protection_domain), std::move(secret),
                    needs_lock(threading));
}

}  // namespace

int open_domain(fid_fabric* /*fabric*/, fi_info* info, fid_domain** domain, void* context) {
  const fi_domain_attr* asked = info->domain_attr;
  const char* name = asked == nullptr || asked->name == nullptr ? device_name() : asked->name;
  Result<Domain*> made = make_domain(name, asked == nullptr ? FI_THREAD_SAFE : asked->threading);
  if (!made.ok()) return report("fi_domain", made.status());
  const int mode = asked == nullptr ? 0 : asked->mr_mode;
  const bool basic = mode == FI_MR_BASIC;
  (*made)->chooses_keys = basic || (mode & FI_MR_PROV_KEY) != 0;
  (*made)->virtual_addresses = basic || (mode & FI_MR_VIRT_ADDR) != 0;
  (*made)->fid = {.fclass = FI_CLASS_DOMAIN, .context = context, .ops = &domain_object_calls};
  (*made)->ops = &domain_calls;
  (*made)->mr = &registration_calls;
  *domain = *made;
  return 0;
}

int report(const char* call, const Status& status) {
  log_error("{}: {}", call, status.message());
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return -FI_EINVAL;
    case StatusCode::kNotFound:
      return -FI_ENODEV;
    case StatusCode::kLimitExceeded:
      return -FI_ENOMEM;
    case StatusCode::kPermissionDenied:
      return -FI_EACCES;
    case StatusCode::kUnavailable:
      return -FI_ECONNABORTED;
    case StatusCode::kTimeout:
      return -FI_ETIMEDOUT;
    default:
      return -FI_EOTHER;
  }
}

int refuse_other_domain(const char* call, const char* object, const char* bound_to) {
  return report(call, Status(StatusCode::kInvalidArgument,
                             fmt::format("{} and {} are of two domains; open both from the same "
                                         "one",
                                         object, bound_to)));
}

}  // namespace verbena::ofi

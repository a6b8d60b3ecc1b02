// Thread domains, and parent domains, which stand for a protection domain.
#include <fmt/format.h>

#include <cerrno>

#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {

// The program's word that one thread uses the objects. A lock that one thread takes costs two
// stores here (owner_lock.h), so nothing is to be saved.
ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attributes) {
  if (check_valid_context(context) != 0) return nullptr;
  if (attributes->comp_mask != 0) {
    fail(EOPNOTSUPP, fmt::format("soft0: thread domains have no fields {:#x} (comp_mask)",
                                 attributes->comp_mask));
    return nullptr;
  }
  auto* domain = new ThreadDomain;
  domain->verbs.context = context;
  as_context(context).users.fetch_add(1);
  make_valid(*domain, context);
  return &domain->verbs;
}

int dealloc_td(ibv_td* verbs) {
  if (const int error = check_valid<ThreadDomain>(verbs); error != 0) return error;
  auto& domain = *reinterpret_cast<ThreadDomain*>(verbs);
  if (domain.users.load() != 0) {
    return fail(EBUSY, "soft0: the thread domain still has parent domains; destroy them first");
  }
  end_use(as_context(verbs->context).users);
  retire(&domain);
  return 0;
}

// The allocators of the attributes may be used for the memory of queues, which soft0 has in its
// memory file.
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attributes) {
  constexpr uint32_t kFields =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if (check_valid<Domain>(attributes->pd) != 0) return nullptr;
  if (attributes->td != nullptr && check_valid<ThreadDomain>(attributes->td) != 0) return nullptr;
  if ((attributes->comp_mask & ~kFields) != 0) {
    fail(EOPNOTSUPP, fmt::format("soft0: parent domains have no fields {:#x} (comp_mask)",
                                 attributes->comp_mask & ~kFields));
    return nullptr;
  }
  if (attributes->pd->context != context ||
      (attributes->td != nullptr && attributes->td->context != context)) {
    fail(EINVAL, "soft0: the domains of a parent domain are of another context");
    return nullptr;
  }
  ibv_pd* verbs = alloc_pd(context);
  if (verbs == nullptr) return nullptr;
  Domain& domain = as_domain(verbs);
  domain.parent = &as_domain(attributes->pd);
  domain.id = domain.parent->id;
  domain.parent->users.fetch_add(1);
  if (attributes->td != nullptr) {
    domain.threads = reinterpret_cast<ThreadDomain*>(attributes->td);
    domain.threads->users.fetch_add(1);
  }
  return verbs;
}

}  // namespace verbena::soft

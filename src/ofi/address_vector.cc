#include "src/ofi/address_vector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <string>

#include "src/ofi/endpoint.h"
#include "src/ofi/node_names.h"

namespace verbena::ofi {
namespace {

AddressVector& vector_of(fid_av* handle) { return *static_cast<AddressVector*>(handle); }

bool knows(const AddressVector& vector, fi_addr_t number) {
  return number < vector.addresses.size() && vector.addresses[number] != MessengerAddress{};
}

int close_vector(fid* handle) {
  auto& vector = object_of<AddressVector>(handle);
  {
    const std::lock_guard guard(vector.domain.lock);
    if (!vector.endpoints.empty()) return -FI_EBUSY;
  }
  if (vector.events != nullptr) --vector.events->vectors;
  --vector.domain.users;
  delete &vector;
  return 0;
}

int bind_vector(fid* handle, fid* other, uint64_t /*flags*/) {
  if (other->fclass != FI_CLASS_EQ) return -FI_EINVAL;
  auto& vector = object_of<AddressVector>(handle);
  if (vector.events != nullptr) return -FI_EINVAL;
  vector.events = &object_of<EventQueue>(other);
  ++vector.events->vectors;
  return 0;
}

// All zeros where there is none.
std::vector<MessengerAddress> addresses_from(const void* bytes, size_t count,
                                             const JobSecret& secret) {
  std::vector<MessengerAddress> addresses(count);
  if (count > 0) memcpy(addresses.data(), bytes, count * sizeof(MessengerAddress));
  const std::vector<Result<MessengerAddress>> known = known_addresses(addresses, secret);
  for (size_t i = 0; i < count; ++i) {
    if (!known[i].ok()) report("fi_av_insert", known[i].status());
    addresses[i] = known[i].ok() ? *known[i] : MessengerAddress{};
  }
  return addresses;
}

int insert(fid_av* handle, const void* bytes, size_t count, fi_addr_t* numbers, uint64_t flags,
           void* context) {
  AddressVector& vector = vector_of(handle);
  if (vector.asynchronous && vector.events == nullptr) return -FI_ENOEQ;
  if (bytes == nullptr && count > 0) return -FI_EINVAL;
  // Then `numbers` has the names that completions are to give, and keeps them.
  if ((flags & FI_AV_USER_ID) != 0) return -FI_EBADFLAGS;
  // Before anything is inserted: the program tries again.
  if (vector.asynchronous && vector.events->is_full()) return -FI_EAGAIN;
  // The context is memory for errors (FI_SYNC_ERR) of synchronous insertions only.
  int* const results =
      !vector.asynchronous && (flags & FI_SYNC_ERR) != 0 ? static_cast<int*>(context) : nullptr;
  std::vector<fi_eq_err_entry> errors;
  int inserted = 0;
  {
    // Without the lock: it may take a while.
    const std::vector<MessengerAddress> addresses =
        addresses_from(bytes, count, vector.domain.secret);
    const std::lock_guard guard(vector.domain.lock);
    for (size_t i = 0; i < count; ++i) {
      const MessengerAddress& address = addresses[i];
      const bool possible = address != MessengerAddress{};
      if (results != nullptr) results[i] = possible ? 0 : FI_EINVAL;
      if (numbers != nullptr) numbers[i] = possible ? vector.addresses.size() : FI_ADDR_NOTAVAIL;
      if (!possible) {
        if (vector.asynchronous) {
          errors.push_back({.fid = &vector.fid,
                            .context = context,
                            .data = i,
                            .err = FI_EINVAL,
                            .prov_errno = FI_EINVAL,
                            .err_data = nullptr,
                            .err_data_size = 0});
        }
        continue;
      }
      vector.numbers.emplace(address, vector.addresses.size());
      vector.addresses.push_back(address);
      ++inserted;
    }
  }
  if (!vector.asynchronous) return inserted;
  vector.events->tell_of_insertion(
      errors, {.fid = &vector.fid, .context = context, .data = static_cast<uint64_t>(inserted)});
  return 0;
}

int insert_service(fid_av* handle, const char* node, const char* service, fi_addr_t* number,
                   uint64_t flags, void* context) {
  const Result<MessengerAddress> place = find_place(node, service, "127.0.0.1", flags);
  if (!place.ok()) return report("fi_av_insertsvc", place.status());
  return insert(handle, &*place, 1, number, flags, context);
}

// Messages that are on their way still come: what ends a connection is the end of one of its
// processes.
int remove(fid_av* handle, fi_addr_t* numbers, size_t count, uint64_t /*flags*/) {
  AddressVector& vector = vector_of(handle);
  const std::lock_guard guard(vector.domain.lock);
  if (!std::all_of(numbers, numbers + count,
                   [&](fi_addr_t number) { return knows(vector, number); }))
    return -FI_EINVAL;
  for (size_t i = 0; i < count; ++i) {
    MessengerAddress& address = vector.addresses[numbers[i]];
    vector.numbers.erase({address, numbers[i]});
    address = {};
    for (Endpoint* endpoint : vector.endpoints) endpoint->forget(numbers[i]);
  }
  return 0;
}

int look_up(fid_av* handle, fi_addr_t number, void* address, size_t* size_bytes) {
  AddressVector& vector = vector_of(handle);
  const std::lock_guard guard(vector.domain.lock);
  if (!knows(vector, number)) return -FI_EINVAL;
  memcpy(address, &vector.addresses[number], std::min(*size_bytes, sizeof(MessengerAddress)));
  *size_bytes = sizeof(MessengerAddress);
  return 0;
}

const char* address_text(fid_av* /*handle*/, const void* address, char* buffer,
                         size_t* size_bytes) {
  std::string text = "verbena://";
  const auto* bytes = static_cast<const uint8_t*>(address);
  for (size_t i = 0; i < sizeof(MessengerAddress); ++i)
    fmt::format_to(std::back_inserter(text), "{:02x}", bytes[i]);
  if (*size_bytes > 0) {
    const size_t shown = std::min(text.size(), *size_bytes - 1);
    memcpy(buffer, text.data(), shown);
    buffer[shown] = '\0';
  }
  *size_bytes = text.size() + 1;
  return buffer;
}

fi_ops vector_object_calls = object_calls(close_vector, bind_vector);
fi_ops_av vector_calls = {
    .size = sizeof(fi_ops_av),
    .insert = insert,
    .insertsvc = insert_service,
    .insertsym = &unsupported,
    .remove = remove,
    .lookup = look_up,
    .straddr = address_text,
    .av_set = &unsupported,
};

}  // namespace

AddressVector::AddressVector(Domain& of, bool shows_events, void* context)
    : fid_av{}, domain(of), asynchronous(shows_events) {
  fid = {.fclass = FI_CLASS_AV, .context = context, .ops = &vector_object_calls};
  ops = &vector_calls;
}

fi_addr_t AddressVector::number_of(const MessengerAddress& address) const {
  const auto found = numbers.lower_bound({address, 0});
  return found == numbers.end() || found->first != address ? FI_ADDR_NOTAVAIL : found->second;
}

int open_address_vector(fid_domain* domain, fi_av_attr* attributes, fid_av** vector,
                        void* context) {
  // No vectors by name that processes share, no contexts of receives to tell apart, and no names of
  // the program's in completions.
  if (attributes != nullptr && (attributes->name != nullptr || attributes->rx_ctx_bits != 0 ||
                                (attributes->flags & FI_AV_USER_ID) != 0))
    return -FI_ENOSYS;
  const bool asynchronous = attributes != nullptr && (attributes->flags & FI_EVENT) != 0;
  auto& of = static_cast<Domain&>(*domain);
  auto* made = new (std::nothrow) AddressVector(of, asynchronous, context);
  if (made == nullptr) return -FI_ENOMEM;
  if (attributes != nullptr) {
    if (attributes->type == FI_AV_UNSPEC) attributes->type = FI_AV_TABLE;
    made->addresses.reserve(std::min<size_t>(attributes->count, 65536));
  }
  ++of.users;
  *vector = made;
  return 0;
}

}  // namespace verbena::ofi

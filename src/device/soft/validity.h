// Whether what a program hands in is an object: made here, of this kind, not destroyed, not
// overwritten. Every control call asks, so that a pointer used once too often is an error and no
// crash later.
//
// A type with is_intact() says there whether its public part still names the objects that the
// private part names.
//
// Destroying an object leaves its shell: an empty object of the same type with the public part as
// it was, so that the library in front of libibverbs still sees whose it is. The latest shells of
// each type are kept; with one, control calls fail, nothing can be posted and polling gives -1. A
// pointer that is older than these may mean anything, as with every allocator.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <new>

#include "src/device/soft/of_process.h"

namespace verbena::soft {

// Lies directly behind an object's public part, where a write beyond that ends first.
struct Validity {
  uint64_t word = 0;  // of no kind
  const ibv_context* context = nullptr;
  uint32_t handle = 0;  // where the public part has one
};

template <typename Public>
concept HasHandle = requires(const Public& verbs) {
  verbs.handle;
};

// How many processes this one descends from by fork(), since the software RNIC was first opened.
// What these made is not this process's: its RNIC is another one.
inline std::atomic<uint32_t> forks{0};

// Of each kind, place and process another one: a copy of an object elsewhere is none.
template <typename Object>
uint64_t validity_word(const Object* object, uint32_t process) {
  uint64_t word = 0x9e3779b97f4a7c15 + process;
  for (const char* at = Object::kName; *at != '\0'; ++at) {
    word = (word ^ static_cast<uint64_t>(*at)) * 0x100000001b3;
  }
  return word ^ reinterpret_cast<uint64_t>(object);
}

// The last step of making an object.
template <typename Object>
void make_valid(Object& object, const ibv_context* context) {
  object.validity = {validity_word(&object, forks.load(std::memory_order_relaxed)), context};
  if constexpr (HasHandle<decltype(object.verbs)>) object.validity.handle = object.verbs.handle;
}

// Set errno and last_error(), and return errno: `name` is what the object should have been, or is
// in the process that this one is a child of.
int refuse_invalid(const char* name);
int refuse_inherited(const char* name);
int refuse_unknown(const char* name);

template <typename Object>
int check_word(const Object& object) {
  uint32_t process = forks.load(std::memory_order_relaxed);
  if (object.validity.word == validity_word(&object, process)) {
    if constexpr (requires { object.is_intact(); }) {
      if (!object.is_intact()) return refuse_invalid(Object::kName);
    }
    return 0;
  }
  while (process > 0) {
    if (object.validity.word == validity_word(&object, --process)) {
      return refuse_inherited(Object::kName);
    }
  }
  return refuse_invalid(Object::kName);
}

// 0 if it is a living object, else EINVAL, or EPERM if it is one of a process that this one was
// forked from, with a line in last_error(). For work requests, which reach no kernel, and so use no
// handle.
template <typename Object, typename Public>
int check_living(const Public* verbs) {
  const auto* object = reinterpret_cast<const Object*>(verbs);
  if (object == nullptr || verbs->context != object->validity.context)
    return refuse_invalid(Object::kName);
  return check_word(*object);
}

// For control calls: as of a kernel ENOENT, too, if its handle is that of no such object: if (const
// int error = check_valid<Cq>(verbs); error != 0) return error;
template <typename Object, typename Public>
int check_valid(const Public* verbs) {
  if (const int error = check_living<Object>(verbs); error != 0) return error;
  const auto* object = reinterpret_cast<const Object*>(verbs);
  if constexpr (HasHandle<Public>) {
    if (verbs->handle != object->validity.handle) return refuse_unknown(Object::kName);
  }
  return 0;
}

template <typename Object>
struct Shells {
  std::mutex mutex;
  std::list<std::unique_ptr<Object>> latest;
};

// Destroys `object` (which new made) but for its shell. `prepare` makes the shell refuse what does
// not ask check_valid().
template <typename Object, typename Prepare>
void retire(Object* object, Prepare&& prepare) {
  constexpr size_t kShells = 64;
  const auto verbs = object->verbs;
  std::destroy_at(object);
  std::unique_ptr<Object> shell(new (object) Object);
  shell->verbs = verbs;
  prepare(*shell);
  auto& shells = of_process<Shells<Object>>();
  const std::lock_guard guard(shells.mutex);
  shells.latest.push_back(std::move(shell));
  if (shells.latest.size() > kShells) shells.latest.pop_front();
}
template <typename Object>
void retire(Object* object) {
  retire(object, [](Object&) {});
}

}  // namespace verbena::soft

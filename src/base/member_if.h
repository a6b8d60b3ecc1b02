// Members that only some instances of a template have.
#pragma once

#include <type_traits>

namespace verbena {

template <typename Member>
struct WithoutMember {};

// A Member, or nothing. Declared [[no_unique_address]], nothing takes no space.
template <bool kHas, typename Member>
using MemberIf = std::conditional_t<kHas, Member, WithoutMember<Member>>;

}  // namespace verbena

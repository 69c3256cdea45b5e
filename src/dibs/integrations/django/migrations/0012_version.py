from dibs.integrations.django.migrating import version

Migration = version(12)
